// Matrix products by ggml's Vulkan backend against its CPU backend: one line for each, and status 1 if one differs.
//
//     compare [--bytes] [--only TEXT]… [--time RUNS]
//
// The error is the squared difference over the squared reference. The CPU rounds activations to 8 bits where weights
// are quantised, and so does the GPU if it can multiply bytes; LIMIT is what ggml's own tests allow. Shapes lie on both
// sides of every tile's edge: up to 32, up to 64 and more rows and columns are the small, medium and large tile.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <dlfcn.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml-vulkan.h>
#include <ggml.h>
#include <vulkan/vulkan.h>

// --bytes: ggml multiplies bytes only where the device says that it does so fast. Mesa's lavapipe does it, slowly.
static bool bytes_are_fast;

static void say_bytes_are_fast(VkPhysicalDevice device, VkPhysicalDeviceProperties2 * properties) {
    static const auto next =
        reinterpret_cast<PFN_vkGetPhysicalDeviceProperties2>(dlsym(RTLD_NEXT, "vkGetPhysicalDeviceProperties2"));
    next(device, properties);
    for (auto * part = static_cast<VkBaseOutStructure *>(properties->pNext); part; part = part->pNext) {
        if (part->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES) {
            reinterpret_cast<VkPhysicalDeviceShaderIntegerDotProductProperties *>(part)
                ->integerDotProduct4x8BitPackedSignedAccelerated = VK_TRUE;
        }
    }
}

// ggml takes all of Vulkan from here. A program's own function comes before that of a library.
PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char * name) {
    static const auto next = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(RTLD_NEXT, "vkGetInstanceProcAddr"));
    if (bytes_are_fast && !strcmp(name, "vkGetPhysicalDeviceProperties2")) {
        return reinterpret_cast<PFN_vkVoidFunction>(say_bytes_are_fast);
    }
    return next(instance, name);
}

namespace {

constexpr double LIMIT = 5e-4;
// Bytes for the descriptions of a graph and its tensors.
constexpr size_t DESCRIPTIONS = 1 << 20;
// Experts of a mixture, and those that a token takes.
constexpr int64_t EXPERTS = 4, TAKEN = 2;

struct Shape {
    int64_t rows, columns, depth;
    bool mixture;
};

const Shape SHAPES[] = {
    { 128, 128, 256, false }, { 256, 192, 1024, false }, { 96, 70, 512, false }, { 200, 131, 768, false },
    { 64, 64, 256, false },   { 32, 96, 256, false },    { 65, 33, 512, false }, { 2048, 512, 2048, false },
    { 128, 96, 256, true },   { 130, 150, 512, true },
};
// Depths that no block of weights divides, so for plain numbers alone.
const Shape ODD[] = { { 128, 128, 300, false }, { 97, 101, 77, false }, { 130, 90, 33, true } };

const ggml_type TYPES[] = {
    GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
    GGML_TYPE_Q8_0, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
};

struct Input {
    std::vector<uint8_t> weights;
    std::vector<float> activations;
    std::vector<int32_t> experts;
};

struct Output {
    std::vector<float> values;
    double microseconds;
};

[[noreturn]] void fail(const char * what) {
    fprintf(stderr, "compare: %s\n", what);
    exit(2);
}

Input input(ggml_type type, const Shape & shape) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const int64_t rows = shape.rows * (shape.mixture ? EXPERTS : 1);
    std::vector<float> plain(rows * shape.depth);
    Input input{ std::vector<uint8_t>(ggml_row_size(type, shape.depth) * rows),
                 std::vector<float>(shape.columns * shape.depth), {} };
    for (float & value : plain) {
        value = normal(random);
    }
    for (float & value : input.activations) {
        value = normal(random);
    }
    for (int64_t token = 0; shape.mixture && token < shape.columns; token++) {
        const int32_t first = random() % EXPERTS;
        input.experts.insert(input.experts.end(), { first, int32_t((first + 1 + random() % (EXPERTS - 1)) % EXPERTS) });
    }
    ggml_quantize_chunk(type, plain.data(), input.weights.data(), 0, rows, shape.depth, nullptr);
    return input;
}

ggml_tensor * product(ggml_context * context, ggml_type type, const Shape & shape, const Input & input,
                      std::vector<std::pair<ggml_tensor *, const void *>> & filled) {
    ggml_tensor * weights = ggml_new_tensor_3d(context, type, shape.depth, shape.rows, shape.mixture ? EXPERTS : 1);
    ggml_tensor * activations =
        ggml_new_tensor_3d(context, GGML_TYPE_F32, shape.depth, shape.mixture ? 1 : shape.columns,
                           shape.mixture ? shape.columns : 1);
    filled = { { weights, input.weights.data() }, { activations, input.activations.data() } };
    if (!shape.mixture) {
        return ggml_mul_mat(context, weights, activations);
    }
    ggml_tensor * experts = ggml_new_tensor_2d(context, GGML_TYPE_I32, TAKEN, shape.columns);
    filled.push_back({ experts, input.experts.data() });
    return ggml_mul_mat_id(context, weights, activations, experts);
}

Output multiply(ggml_backend_t backend, ggml_type type, const Shape & shape, const Input & input, int runs) {
    ggml_context * context = ggml_init({ DESCRIPTIONS, nullptr, true });
    std::vector<std::pair<ggml_tensor *, const void *>> filled;
    ggml_tensor * result = product(context, type, shape, input, filled);
    ggml_cgraph * graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, result);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
    if (!buffer) {
        fail("no memory on the device");
    }
    for (const auto & [tensor, bytes] : filled) {
        ggml_backend_tensor_set(tensor, bytes, 0, ggml_nbytes(tensor));
    }
    // The first run compiles.
    double best = INFINITY;
    for (int run = 0; run <= runs; run++) {
        const auto start = std::chrono::steady_clock::now();
        if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
            fail("the graph was not computed");
        }
        ggml_backend_synchronize(backend);
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
        best = run ? std::fmin(best, took.count()) : best;
    }
    Output output{ std::vector<float>(ggml_nelements(result)), best };
    ggml_backend_tensor_get(result, output.values.data(), 0, ggml_nbytes(result));
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
    return output;
}

double error(const std::vector<float> & values, const std::vector<float> & reference) {
    double difference = 0, square = 0;
    for (size_t index = 0; index < values.size(); index++) {
        const double delta = double(values[index]) - reference[index];
        difference += delta * delta;
        square += double(reference[index]) * reference[index];
    }
    return difference / square;
}

struct Run {
    ggml_backend_t gpu, cpu;
    std::vector<std::string> only;
    int runs = 0;
    int compared = 0, different = 0;

    void compare(ggml_type type, const Shape & shape) {
        char name[128];
        snprintf(name, sizeof(name), "%s%s %lldx%lldx%lld", ggml_type_name(type), shape.mixture ? " mixture" : "",
                 (long long) shape.rows, (long long) shape.columns, (long long) shape.depth);
        const auto wanted = [&name](const std::string & text) { return strstr(name, text.c_str()) != nullptr; };
        if (!only.empty() && std::none_of(only.begin(), only.end(), wanted)) {
            return;
        }
        const Input values = input(type, shape);
        const Output got = multiply(gpu, type, shape, values, runs);
        const double difference = error(got.values, multiply(cpu, type, shape, values, 0).values);
        // A value that is not a number makes the error none, which is not below the limit.
        const bool same = difference < LIMIT;
        printf("%-28s error %.2e %s", name, difference, same ? "same" : "DIFFERENT");
        runs ? printf(" %10.1f us\n", got.microseconds) : printf("\n");
        fflush(stdout);
        compared++;
        different += !same;
    }
};

} // namespace

int main(int count, char ** arguments) {
    Run run;
    for (int index = 1; index < count; index++) {
        const std::string option = arguments[index];
        if (option == "--bytes") {
            bytes_are_fast = true;
        } else if (option == "--only" && index + 1 < count) {
            run.only.push_back(arguments[++index]);
        } else if (option == "--time" && index + 1 < count) {
            run.runs = atoi(arguments[++index]);
        } else {
            fail("compare [--bytes] [--only TEXT]… [--time RUNS]");
        }
    }
    if (ggml_backend_vk_get_device_count() == 0) {
        fail("no Vulkan device");
    }
    char device[256];
    ggml_backend_vk_get_device_description(0, device, sizeof(device));
    const char * tile = getenv("GGML_VK_MALI_TILE");
    printf("%s, GGML_VK_MALI_TILE=%s\n", device, tile ? tile : "");
    run.gpu = ggml_backend_vk_init(0);
    run.cpu = ggml_backend_cpu_init();
    for (const ggml_type type : TYPES) {
        for (const Shape & shape : SHAPES) {
            run.compare(type, shape);
        }
    }
    for (const ggml_type type : { GGML_TYPE_F32, GGML_TYPE_F16 }) {
        for (const Shape & shape : ODD) {
            run.compare(type, shape);
        }
    }
    printf("%d compared, %d different\n", run.compared, run.different);
    return run.compared == 0 || run.different != 0;
}
