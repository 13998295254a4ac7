/*
 * Asks a node for its bus id, as programs for displays do: DRM_IOCTL_GET_UNIQUE.
 *
 *     unique NODE
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

struct unique { size_t len; char *text; };

int main(int argc, char **argv)
{
	char text[64] = "";
	struct unique unique = { sizeof(text) - 1, text };
	int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;

	if (fd < 0)
		return fprintf(stderr, "usage: unique NODE\n"), 2;
	if (ioctl(fd, _IOWR('d', 0x01, struct unique), &unique))
		return printf("%s\n", strerror(errno)), 1;
	printf("%zu bytes: %s\n", unique.len, text);
	return 0;
}
