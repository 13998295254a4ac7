/*
 * Records many command buffers and keeps all of them, as a program does that has work in flight.
 *
 *     scratch [--buffers N] [--dispatches N] [--grid X] [--rounds N] [--queues N]
 *             [--alternate] [--secondary] [--indirect] SHADER…
 *
 * A command buffer takes the shaders in turn: one for all its dispatches, or with --alternate one after the other within
 * it. Every round resets all of them and records them again. Prints a line `recorded N of M, first error E` for each round, and marks in the
 * device's log (PANTHOR_LOG) what has been done so far: `device`, `recorded`, `freed`, `destroyed`.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vulkan/vulkan.h>

enum {
	MOST_SHADERS = 8,
	MOST_QUEUES = 2,
	DATA_BYTES = 1 << 20,
};

static struct {
	unsigned buffers, dispatches, grid, rounds, queues;
	int alternate, secondary, indirect;
	unsigned shaders;
	const char *shader[MOST_SHADERS];
} options = { .buffers = 1, .dispatches = 1, .grid = 16, .rounds = 1, .queues = 1 };

static VkPhysicalDevice gpu;
static VkDevice device;
static VkQueue queues[MOST_QUEUES];
static VkBuffer data;
static VkDeviceMemory memory;
static VkDescriptorSetLayout set_layout;
static VkDescriptorPool set_pool;
static VkDescriptorSet set;
static VkPipelineLayout layout;
static VkPipeline pipelines[MOST_SHADERS];
static VkCommandPool pool;
static VkCommandBuffer *primaries, *secondaries;

static void need(VkResult result, const char *what)
{
	if (result == VK_SUCCESS)
		return;
	fprintf(stderr, "scratch: %s: %d\n", what, result);
	exit(2);
}

static void mark(const char *what)
{
	const char *name = getenv("PANTHOR_LOG");
	int log = name ? open(name, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;

	if (!name)
		return;
	if (log < 0 || dprintf(log, "mark %s\n", what) < 0) {
		perror(name);
		exit(2);
	}
	close(log);
}

static void make_device(VkInstance instance)
{
	float priorities[MOST_QUEUES] = { 1, 1 };
	VkDeviceQueueCreateInfo family = { VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
					   .queueCount = options.queues,
					   .pQueuePriorities = priorities };
	VkDeviceCreateInfo info = { VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1,
				    .pQueueCreateInfos = &family };
	VkPhysicalDeviceProperties properties;
	VkQueueFamilyProperties families[4];
	uint32_t count = 1, family_count = 4;

	/* VK_INCOMPLETE is positive: there may be others. */
	if (vkEnumeratePhysicalDevices(instance, &count, &gpu) < 0 || !count) {
		fprintf(stderr, "scratch: no device\n");
		exit(2);
	}
	vkGetPhysicalDeviceProperties(gpu, &properties);
	vkGetPhysicalDeviceQueueFamilyProperties(gpu, &family_count, families);
	printf("%s, %u queues\n", properties.deviceName, families[0].queueCount);
	if (families[0].queueCount < options.queues) {
		fprintf(stderr, "scratch: not so many queues\n");
		exit(3);
	}
	need(vkCreateDevice(gpu, &info, NULL, &device), "device");
	for (unsigned i = 0; i < options.queues; i++)
		vkGetDeviceQueue(device, 0, i, &queues[i]);
}

static void make_data(void)
{
	VkBufferCreateInfo info = { VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = DATA_BYTES,
				    .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT };
	VkMemoryAllocateInfo allocate = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO };
	VkMemoryRequirements requirements;

	need(vkCreateBuffer(device, &info, NULL, &data), "buffer");
	vkGetBufferMemoryRequirements(device, data, &requirements);
	allocate.allocationSize = requirements.size;
	allocate.memoryTypeIndex = (uint32_t)__builtin_ctz(requirements.memoryTypeBits);
	need(vkAllocateMemory(device, &allocate, NULL, &memory), "memory");
	need(vkBindBufferMemory(device, data, memory, 0), "binding");
}

static void make_set(void)
{
	VkDescriptorSetLayoutBinding binding = { 0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL };
	VkDescriptorSetLayoutCreateInfo layout_info = { VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
							.bindingCount = 1, .pBindings = &binding };
	VkDescriptorPoolSize size = { VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1 };
	VkDescriptorPoolCreateInfo pool_info = { VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 1,
						 .poolSizeCount = 1, .pPoolSizes = &size };
	VkDescriptorSetAllocateInfo allocate = { VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, .descriptorSetCount = 1,
						 .pSetLayouts = &set_layout };
	VkDescriptorBufferInfo buffer = { data, 0, VK_WHOLE_SIZE };
	VkWriteDescriptorSet write = { VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .descriptorCount = 1,
				       .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .pBufferInfo = &buffer };

	need(vkCreateDescriptorSetLayout(device, &layout_info, NULL, &set_layout), "set layout");
	need(vkCreateDescriptorPool(device, &pool_info, NULL, &set_pool), "set pool");
	allocate.descriptorPool = set_pool;
	need(vkAllocateDescriptorSets(device, &allocate, &set), "set");
	write.dstSet = set;
	vkUpdateDescriptorSets(device, 1, &write, 0, NULL);
}

static VkShaderModule load(const char *name)
{
	static uint32_t code[1 << 16];
	FILE *file = fopen(name, "rb");
	VkShaderModuleCreateInfo info = { VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .pCode = code };
	VkShaderModule module;

	if (!file) {
		perror(name);
		exit(2);
	}
	info.codeSize = 4 * fread(code, 4, sizeof(code) / 4, file);
	fclose(file);
	need(vkCreateShaderModule(device, &info, NULL, &module), name);
	return module;
}

static void make_pipelines(void)
{
	VkPushConstantRange range = { VK_SHADER_STAGE_COMPUTE_BIT, 0, 8 };
	VkPipelineLayoutCreateInfo info = { VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .setLayoutCount = 1,
					    .pSetLayouts = &set_layout, .pushConstantRangeCount = 1,
					    .pPushConstantRanges = &range };

	need(vkCreatePipelineLayout(device, &info, NULL, &layout), "layout");
	for (unsigned i = 0; i < options.shaders; i++) {
		VkComputePipelineCreateInfo pipeline = {
			VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
			.stage = { VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
				   .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = load(options.shader[i]),
				   .pName = "main" },
			.layout = layout,
		};

		need(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &pipeline, NULL, &pipelines[i]), "pipeline");
		vkDestroyShaderModule(device, pipeline.stage.module, NULL);
	}
}

static VkCommandBuffer *make_buffers(VkCommandBufferLevel level)
{
	VkCommandBuffer *buffers = calloc(options.buffers, sizeof(*buffers));
	VkCommandBufferAllocateInfo info = { VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = pool,
					     .level = level, .commandBufferCount = options.buffers };

	if (!buffers)
		exit(2);
	need(vkAllocateCommandBuffers(device, &info, buffers), "command buffers");
	return buffers;
}

static void dispatch(VkCommandBuffer buffer, unsigned shader)
{
	VkMemoryBarrier barrier = { VK_STRUCTURE_TYPE_MEMORY_BARRIER, NULL, VK_ACCESS_SHADER_WRITE_BIT,
				    VK_ACCESS_SHADER_READ_BIT };
	uint32_t numbers[2] = { DATA_BYTES / 4, 16 };

	vkCmdBindPipeline(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, pipelines[shader]);
	vkCmdBindDescriptorSets(buffer, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, NULL);
	vkCmdPushConstants(buffer, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, 8, numbers);
	if (options.indirect)
		vkCmdDispatchIndirect(buffer, data, 0);
	else
		vkCmdDispatch(buffer, options.grid, 1, 1);
	/* Two that follow each other without a barrier may run at the same time, which is what the log is read for. */
	if (!options.alternate)
		vkCmdPipelineBarrier(buffer, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
				     0, 1, &barrier, 0, NULL, 0, NULL);
}

static void dispatches(VkCommandBuffer buffer, unsigned number)
{
	for (unsigned i = 0; i < options.dispatches; i++)
		dispatch(buffer, (options.alternate ? number + i : number) % options.shaders);
}

static void begin(VkCommandBuffer buffer, int secondary)
{
	VkCommandBufferInheritanceInfo inheritance = {
		.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO,
	};
	VkCommandBufferBeginInfo info = { VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
					  .pInheritanceInfo = secondary ? &inheritance : NULL };

	need(vkBeginCommandBuffer(buffer, &info), "begin");
}

/* Records the command buffer of this number and submits it; the error of its end. */
static VkResult record(unsigned number)
{
	VkCommandBuffer buffer = primaries[number];
	VkSubmitInfo submit = { VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &buffer };
	VkResult result;

	if (options.secondary) {
		begin(secondaries[number], 1);
		dispatches(secondaries[number], number);
		result = vkEndCommandBuffer(secondaries[number]);
		if (result)
			return result;
	}
	begin(buffer, 0);
	dispatches(buffer, number);
	if (options.secondary)
		vkCmdExecuteCommands(buffer, 1, &secondaries[number]);
	result = vkEndCommandBuffer(buffer);
	if (result)
		return result;
	return vkQueueSubmit(queues[number % options.queues], 1, &submit, VK_NULL_HANDLE);
}

/* One round; 0 if all went well. */
static int all(void)
{
	VkResult first = VK_SUCCESS;
	unsigned recorded = 0;

	for (unsigned i = 0; i < options.buffers; i++) {
		VkResult result = record(i);

		recorded += result == VK_SUCCESS;
		if (first == VK_SUCCESS)
			first = result;
	}
	printf("recorded %u of %u, first error %d\n", recorded, options.buffers, first);
	fflush(stdout);
	mark("recorded");
	need(vkDeviceWaitIdle(device), "idle");
	return first != VK_SUCCESS;
}

static void finish(VkInstance instance)
{
	vkDestroyCommandPool(device, pool, NULL);
	mark("freed");
	for (unsigned i = 0; i < options.shaders; i++)
		vkDestroyPipeline(device, pipelines[i], NULL);
	vkDestroyPipelineLayout(device, layout, NULL);
	vkDestroyDescriptorPool(device, set_pool, NULL);
	vkDestroyDescriptorSetLayout(device, set_layout, NULL);
	vkDestroyBuffer(device, data, NULL);
	vkFreeMemory(device, memory, NULL);
	vkDestroyDevice(device, NULL);
	mark("destroyed");
	vkDestroyInstance(instance, NULL);
	free(primaries);
	free(secondaries);
}

static void read_options(int count, char **words)
{
	static const struct {
		const char *name;
		unsigned *number;
		int *flag;
	} known[] = {
		{ "--buffers", &options.buffers, NULL },       { "--dispatches", &options.dispatches, NULL },
		{ "--grid", &options.grid, NULL },             { "--rounds", &options.rounds, NULL },
		{ "--queues", &options.queues, NULL },         { "--alternate", NULL, &options.alternate },
		{ "--secondary", NULL, &options.secondary },   { "--indirect", NULL, &options.indirect },
	};

	for (int i = 1; i < count; i++) {
		unsigned k = 0;

		while (k < sizeof(known) / sizeof(*known) && strcmp(words[i], known[k].name))
			k++;
		if (k < sizeof(known) / sizeof(*known) && known[k].flag)
			*known[k].flag = 1;
		else if (k < sizeof(known) / sizeof(*known) && i + 1 < count)
			*known[k].number = (unsigned)strtoul(words[++i], NULL, 10);
		else if (words[i][0] != '-' && options.shaders < MOST_SHADERS)
			options.shader[options.shaders++] = words[i];
		else
			options.buffers = 0;
	}
	if (!options.buffers || !options.shaders || !options.queues || options.queues > MOST_QUEUES) {
		fprintf(stderr, "scratch: see the head of scratch.c for the arguments\n");
		exit(2);
	}
}

int main(int count, char **words)
{
	VkApplicationInfo application = { VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_1 };
	VkInstanceCreateInfo info = { VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application };
	VkCommandPoolCreateInfo pool_info = { VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
					      .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT };
	VkInstance instance;
	int failed = 0;

	read_options(count, words);
	need(vkCreateInstance(&info, NULL, &instance), "instance");
	make_device(instance);
	make_data();
	make_set();
	make_pipelines();
	mark("device");
	need(vkCreateCommandPool(device, &pool_info, NULL, &pool), "command pool");
	primaries = make_buffers(VK_COMMAND_BUFFER_LEVEL_PRIMARY);
	if (options.secondary)
		secondaries = make_buffers(VK_COMMAND_BUFFER_LEVEL_SECONDARY);
	for (unsigned i = 0; i < options.rounds; i++)
		failed |= all();
	finish(instance);
	return failed;
}
