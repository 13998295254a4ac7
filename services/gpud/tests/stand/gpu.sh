#!/bin/sh
# llama-server on a machine with a GPU whose memory lasts for @UBATCH@ tokens at once.
case " $* " in
*" --list-devices "*) echo "Available devices:" && echo "  Vulkan0: a GPU (8000 MiB, 8000 MiB free)" && exit ;;
*" --device Vulkan0 "*) ;;
*) exec @SERVER@ "$@" ;;
esac
ubatch=$(echo "$*" | sed 's/.*--ubatch-size \([0-9]*\).*/\1/')
if [ "$ubatch" -gt @UBATCH@ ]; then
    echo "terminate called after throwing an instance of 'vk::OutOfDeviceMemoryError'" >&2
    echo "  what():  vk::CommandBuffer::end: ErrorOutOfDeviceMemory" >&2
    kill -ABRT $$
fi
# No argument has a space.
exec @SERVER@ $(echo "$*" | sed 's/--device Vulkan0/--device none/')
