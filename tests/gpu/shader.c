/*
 * What a driver's compiler makes of a compute shader.
 *
 *     shader FILE CONSTANTS…
 *     shader --first FILE CONSTANTS…
 *
 * CONSTANTS are `ID=VALUE,ID=VALUE`. For each set of them: a line `compiled CONSTANTS: [NAME]=VALUE …` with the driver's
 * statistics, and marks in the device's log (PANTHOR_LOG) around the end of a command buffer with one dispatch, where
 * panvk allocates the threads' scratch: `dispatched`, `ended`.
 *
 * With --first, on a device that computes: runs the first workgroup of a matrix product of two tiles side by side, and
 * says how many results it wrote in its own tile and elsewhere. FILE is ggml's mul_mm.comp for two matrices of floats.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vulkan/vulkan.h>

enum {
	BUFFERS = 8,
	BUFFER_BYTES = 1 << 20,
	PUSHED_BYTES = 128,
	MOST_CONSTANTS = 16,
	MOST_STATISTICS = 64,
	DEPTH = 64,
	/* Threads of a warp of this GPU. */
	WARP = 16,
};

static VkPhysicalDevice gpu;
static VkDevice device;
static VkQueue queue;
static VkShaderModule module;
static VkPipelineLayout layout;
static VkDescriptorSet set;
static float *data;
/* --first */
static int first;
static VkCommandPool pool;

static void need(VkResult result, const char *what)
{
	if (result == VK_SUCCESS)
		return;
	fprintf(stderr, "shader: %s: %d\n", what, result);
	exit(2);
}

static void mark(const char *what)
{
	const char *name = getenv("PANTHOR_LOG");
	int log = name ? open(name, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;

	if (!name)
		return;
	if (log < 0 || dprintf(log, "mark %s\n", what) < 0) {
		perror("shader: PANTHOR_LOG");
		exit(2);
	}
	close(log);
}

/* With every feature that the device has, except checks of bounds, which ggml switches off as well. */
static void make_device(void)
{
	const char *extension = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
	VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR statistics = {
		.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR
	};
	VkPhysicalDeviceVulkan13Features vulkan13 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES,
						      .pNext = first ? NULL : &statistics };
	VkPhysicalDeviceVulkan12Features vulkan12 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
						      .pNext = &vulkan13 };
	VkPhysicalDeviceVulkan11Features vulkan11 = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
						      .pNext = &vulkan12 };
	VkPhysicalDeviceFeatures2 features = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &vulkan11 };
	VkApplicationInfo application = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_3 };
	VkInstanceCreateInfo instance_info = { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
					       .pApplicationInfo = &application };
	float priority = 1;
	VkDeviceQueueCreateInfo family = { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1,
					   .pQueuePriorities = &priority };
	VkDeviceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &features,
				    .queueCreateInfoCount = 1, .pQueueCreateInfos = &family,
				    .enabledExtensionCount = !first, .ppEnabledExtensionNames = &extension };
	VkPhysicalDeviceProperties properties;
	VkInstance instance;
	uint32_t count = 1;

	need(vkCreateInstance(&instance_info, NULL, &instance), "instance");
	/* VK_INCOMPLETE is positive: there may be others. */
	if (vkEnumeratePhysicalDevices(instance, &count, &gpu) < 0 || !count) {
		fprintf(stderr, "shader: no device\n");
		exit(2);
	}
	vkGetPhysicalDeviceProperties(gpu, &properties);
	printf("device %s\n", properties.deviceName);
	vkGetPhysicalDeviceFeatures2(gpu, &features);
	features.features.robustBufferAccess = VK_FALSE;
	need(vkCreateDevice(gpu, &info, NULL, &device), "device");
	vkGetDeviceQueue(device, 0, 0, &queue);
}

static void load(const char *name)
{
	VkShaderModuleCreateInfo info = { .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO };
	FILE *file = fopen(name, "rb");
	uint32_t *code;
	long bytes;

	if (!file || fseek(file, 0, SEEK_END) || (bytes = ftell(file)) < 0) {
		perror(name);
		exit(2);
	}
	rewind(file);
	code = malloc((size_t)bytes);
	if (!code || fread(code, 1, (size_t)bytes, file) != (size_t)bytes) {
		perror(name);
		exit(2);
	}
	fclose(file);
	info.codeSize = (size_t)bytes;
	info.pCode = code;
	need(vkCreateShaderModule(device, &info, NULL, &module), name);
	free(code);
}

/* ggml's layout: storage buffers, all the same one here, and push constants. */
static void make_layout(void)
{
	VkDescriptorSetLayoutBinding bindings[BUFFERS];
	VkDescriptorSetLayoutCreateInfo set_info = { .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
						     .bindingCount = BUFFERS, .pBindings = bindings };
	VkDescriptorPoolSize size = { VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, BUFFERS };
	VkDescriptorPoolCreateInfo pool_info = { .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 1,
						 .poolSizeCount = 1, .pPoolSizes = &size };
	VkPushConstantRange range = { VK_SHADER_STAGE_COMPUTE_BIT, 0, PUSHED_BYTES };
	VkDescriptorSetLayout set_layout;
	VkPipelineLayoutCreateInfo info = { .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1,
					    .pSetLayouts = &set_layout, .pushConstantRangeCount = 1,
					    .pPushConstantRanges = &range };
	VkDescriptorSetAllocateInfo allocate = { .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
						 .descriptorSetCount = 1, .pSetLayouts = &set_layout };
	VkDescriptorPool sets;

	for (unsigned i = 0; i < BUFFERS; i++)
		bindings[i] = (VkDescriptorSetLayoutBinding){ i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1,
							      VK_SHADER_STAGE_COMPUTE_BIT, NULL };
	need(vkCreateDescriptorSetLayout(device, &set_info, NULL, &set_layout), "set layout");
	need(vkCreatePipelineLayout(device, &info, NULL, &layout), "layout");
	need(vkCreateDescriptorPool(device, &pool_info, NULL, &sets), "sets");
	allocate.descriptorPool = sets;
	need(vkAllocateDescriptorSets(device, &allocate, &set), "set");
}

static void make_data(void)
{
	VkBufferCreateInfo info = { .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = BUFFER_BYTES,
				    .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT };
	VkMemoryAllocateInfo allocate = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO };
	VkCommandPoolCreateInfo pool_info = { .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO };
	VkMemoryRequirements requirements;
	VkDeviceMemory memory;
	VkBuffer buffer;
	void *view;

	need(vkCreateBuffer(device, &info, NULL, &buffer), "buffer");
	vkGetBufferMemoryRequirements(device, buffer, &requirements);
	allocate.allocationSize = requirements.size;
	allocate.memoryTypeIndex = (uint32_t)__builtin_ctz(requirements.memoryTypeBits);
	need(vkAllocateMemory(device, &allocate, NULL, &memory), "memory");
	need(vkBindBufferMemory(device, buffer, memory, 0), "binding");
	need(vkMapMemory(device, memory, 0, VK_WHOLE_SIZE, 0, &view), "mapping");
	data = view;
	for (unsigned i = 0; i < BUFFERS; i++) {
		VkDescriptorBufferInfo whole = { buffer, 0, VK_WHOLE_SIZE };
		VkWriteDescriptorSet write = { .sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .dstSet = set, .dstBinding = i,
					       .descriptorCount = 1,
					       .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
					       .pBufferInfo = &whole };

		vkUpdateDescriptorSets(device, 1, &write, 0, NULL);
	}
	need(vkCreateCommandPool(device, &pool_info, NULL, &pool), "pool");
}

static VkPipeline compile(const char *constants)
{
	VkSpecializationMapEntry entries[MOST_CONSTANTS];
	uint32_t values[MOST_CONSTANTS], count = 0;
	VkSpecializationInfo specialization = { .pMapEntries = entries, .dataSize = sizeof(values), .pData = values };
	VkPipelineShaderStageRequiredSubgroupSizeCreateInfo warp = {
		.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
		.requiredSubgroupSize = WARP,
	};
	VkComputePipelineCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
		.flags = first ? 0 : VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR,
		.stage = { VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, &warp, 0, VK_SHADER_STAGE_COMPUTE_BIT,
			   module, "main", &specialization },
		.layout = layout,
	};
	VkPipeline pipeline;

	for (const char *text = constants; *text && count < MOST_CONSTANTS; count++) {
		int used = 0;

		if (sscanf(text, "%u=%u%n", &entries[count].constantID, &values[count], &used) != 2) {
			fprintf(stderr, "shader: `%s` is not ID=VALUE\n", text);
			exit(2);
		}
		entries[count].offset = count * sizeof(values[0]);
		entries[count].size = sizeof(values[0]);
		text += used + (text[used] == ',');
	}
	specialization.mapEntryCount = count;
	need(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, NULL, &pipeline), constants);
	return pipeline;
}

static void print_statistics(VkPipeline pipeline, const char *constants)
{
	PFN_vkGetPipelineExecutableStatisticsKHR get =
		(PFN_vkGetPipelineExecutableStatisticsKHR)vkGetDeviceProcAddr(device,
									      "vkGetPipelineExecutableStatisticsKHR");
	VkPipelineExecutableInfoKHR executable = { VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, NULL, pipeline, 0 };
	VkPipelineExecutableStatisticKHR statistics[MOST_STATISTICS];
	uint32_t count = MOST_STATISTICS;

	memset(statistics, 0, sizeof(statistics));
	for (unsigned i = 0; i < MOST_STATISTICS; i++)
		statistics[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
	need(get(device, &executable, &count, statistics), "statistics");
	printf("compiled %s:", constants);
	for (unsigned i = 0; i < count; i++) {
		const VkPipelineExecutableStatisticKHR *one = &statistics[i];

		if (one->format == VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR)
			printf(" [%s]=%.2f", one->name, one->value.f64);
		else
			printf(" [%s]=%llu", one->name, (unsigned long long)one->value.u64);
	}
	printf("\n");
	fflush(stdout);
}

static void record(VkPipeline pipeline, const void *pushed, uint32_t workgroups, int submitted)
{
	VkCommandBufferAllocateInfo allocate = { VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, NULL, pool,
						 VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1 };
	VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO };
	VkSubmitInfo submit = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1 };
	VkCommandBuffer buffer;

	need(vkAllocateCommandBuffers(device, &allocate, &buffer), "command buffer");
	need(vkBeginCommandBuffer(buffer, &begin), "begin");
	vkCmdBindPipeline(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
	vkCmdBindDescriptorSets(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, NULL);
	vkCmdPushConstants(buffer, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, PUSHED_BYTES, pushed);
	vkCmdDispatch(buffer, workgroups, 1, 1);
	mark("dispatched");
	need(vkEndCommandBuffer(buffer), "end");
	mark("ended");
	submit.pCommandBuffers = &buffer;
	if (submitted) {
		need(vkQueueSubmit(queue, 1, &submit, VK_NULL_HANDLE), "submit");
		need(vkQueueWaitIdle(queue), "wait");
	}
	vkFreeCommandBuffers(device, pool, 1, &buffer);
}

/* The value of constant `id`: a side of the tile. */
static uint32_t side(const char *constants, uint32_t id)
{
	char name[16];
	const char *found;

	snprintf(name, sizeof(name), ",%u=", id);
	found = strstr(constants, name);
	if (!found) {
		fprintf(stderr, "shader: no constant %u in %s\n", id, constants);
		exit(2);
	}
	return (uint32_t)strtoul(found + strlen(name), NULL, 10);
}

/* All matrices are one buffer full of ones, so a result is DEPTH or, where a thread reads what nobody wrote, anything. */
static void run_first(VkPipeline pipeline, const char *constants)
{
	uint32_t rows = side(constants, 1), columns = side(constants, 2);
	/* M, N, K, strides of A, B and D, three strides of batches, first batch, batches, split of K, batches' shape. */
	uint32_t pushed[PUSHED_BYTES / sizeof(uint32_t)] = { rows, 2 * columns, DEPTH, DEPTH, DEPTH, rows, 0, 0, 0, 0,
							     1,    DEPTH,       1,     1,     1,     1 };
	uint32_t inside = 0, outside = 0;

	for (unsigned i = 0; i < BUFFER_BYTES / sizeof(*data); i++)
		data[i] = 1;
	record(pipeline, pushed, 1, 1);
	for (unsigned i = 0; i < 2 * rows * columns; i++)
		*(i < rows * columns ? &inside : &outside) += data[i] != 1;
	printf("wrote %s: %u of %u, and %u elsewhere\n", constants, inside, rows * columns, outside);
}

int main(int count, char **arguments)
{
	static const char zeros[PUSHED_BYTES];

	first = count > 1 && !strcmp(arguments[1], "--first");
	if (count < 3 + first) {
		fprintf(stderr, "shader [--first] FILE CONSTANTS…\n");
		return 2;
	}
	make_device();
	load(arguments[1 + first]);
	make_layout();
	make_data();
	for (int i = 2 + first; i < count; i++) {
		VkPipeline pipeline = compile(arguments[i]);

		if (first) {
			run_first(pipeline, arguments[i]);
		} else {
			print_statistics(pipeline, arguments[i]);
			record(pipeline, zeros, 16, 0);
		}
		vkDestroyPipeline(device, pipeline, NULL);
	}
	return 0;
}
