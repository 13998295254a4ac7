// The matrix products of a language model's prefill on ggml's Vulkan backend: Qwen2.5-3B's shapes, 36 layers, weights in
// Q4_K, without attention and rotations.
//
//     prefill TOKENS
//
// Prints how much memory it asks for itself. Ends with 3 when the driver throws, which it prints. Weights are not filled: nothing is executed here.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

namespace {

constexpr int LAYERS = 36, WIDTH = 2048, KEYS = 256, INNER = 11008;

struct Layer {
    ggml_tensor *query, *key, *value, *output, *gate, *up, *down;
};

Layer make_layer(ggml_context *context) {
    auto weights = [&](int from, int to) { return ggml_new_tensor_2d(context, GGML_TYPE_Q4_K, from, to); };
    return { weights(WIDTH, WIDTH), weights(WIDTH, KEYS), weights(WIDTH, KEYS), weights(WIDTH, WIDTH),
             weights(WIDTH, INNER), weights(WIDTH, INNER), weights(INNER, WIDTH) };
}

// All layers have the same weights: only sizes matter.
ggml_cgraph *make_graph(ggml_context *context, const Layer &layer, ggml_tensor *input) {
    ggml_cgraph *graph = ggml_new_graph_custom(context, 4096, false);
    ggml_tensor *stream = input;
    for (int i = 0; i < LAYERS; ++i) {
        ggml_tensor *normal = ggml_rms_norm(context, stream, 1e-6f);
        ggml_build_forward_expand(graph, ggml_mul_mat(context, layer.key, normal));
        ggml_build_forward_expand(graph, ggml_mul_mat(context, layer.value, normal));
        ggml_tensor *attended = ggml_mul_mat(context, layer.output, ggml_mul_mat(context, layer.query, normal));
        stream = ggml_add(context, stream, attended);
        normal = ggml_rms_norm(context, stream, 1e-6f);
        ggml_tensor *gate = ggml_silu(context, ggml_mul_mat(context, layer.gate, normal));
        ggml_tensor *inner = ggml_mul(context, gate, ggml_mul_mat(context, layer.up, normal));
        stream = ggml_add(context, stream, ggml_mul_mat(context, layer.down, inner));
    }
    ggml_build_forward_expand(graph, stream);
    return graph;
}

int run(int tokens) {
    ggml_backend_load_all();
    ggml_backend_dev_t device = ggml_backend_dev_by_name("Vulkan0");
    if (!device) {
        std::fprintf(stderr, "prefill: no Vulkan device\n");
        return 2;
    }
    ggml_backend_t backend = ggml_backend_dev_init(device, nullptr);
    ggml_init_params parameters = { std::size_t(16) << 20, nullptr, true };
    ggml_context *weights = ggml_init(parameters), *nodes = ggml_init(parameters);
    Layer layer = make_layer(weights);
    ggml_tensor *input = ggml_new_tensor_2d(weights, GGML_TYPE_F32, WIDTH, tokens);
    ggml_backend_buffer_t memory = ggml_backend_alloc_ctx_tensors(weights, backend);
    if (!memory) {
        std::fprintf(stderr, "prefill: no memory for the weights\n");
        return 2;
    }
    ggml_cgraph *graph = make_graph(nodes, layer, input);
    ggml_gallocr_t allocator = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
    if (!ggml_gallocr_alloc_graph(allocator, graph)) {
        std::fprintf(stderr, "prefill: no memory for the graph\n");
        return 2;
    }
    std::size_t own = ggml_backend_buffer_get_size(memory) + ggml_gallocr_get_buffer_size(allocator, 0);
    std::printf("%d nodes, %d tokens, %zu bytes of its own\n", ggml_graph_n_nodes(graph), tokens, own);
    std::fflush(stdout);
    ggml_status status = ggml_backend_graph_compute(backend, graph);
    ggml_backend_synchronize(backend);
    return status == GGML_STATUS_SUCCESS ? 0 : 3;
}

} // namespace

int main(int count, char **words) {
    int tokens = count == 2 ? std::atoi(words[1]) : 0;
    if (tokens < 1) {
        std::fprintf(stderr, "prefill: how many tokens?\n");
        return 2;
    }
    int status;
    try {
        status = run(tokens);
    } catch (const std::exception &error) {
        std::printf("%s\n", error.what());
        status = 3;
    }
    // The backend's own end waits for work that a failed one has lost.
    std::fflush(nullptr);
    std::_Exit(status);
}
