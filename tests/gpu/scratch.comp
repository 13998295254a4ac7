// A shader whose threads and workgroups need as much scratch as the compiler is told:
// THREAD words for each thread, GROUP words for each workgroup of 128 threads.
#version 450

layout(local_size_x = 128) in;
layout(std430, binding = 0) buffer Data { uint data[]; };
layout(push_constant) uniform Numbers { uint words; uint rounds; };
#if GROUP > 0
shared uint group[GROUP];
#endif

void main() {
    uint id = gl_GlobalInvocationID.x;
    uint sum = data[id % words];
#if THREAD > 0
    // Indices that the compiler cannot know keep the array in memory.
    uint array[THREAD];
    for (uint i = 0; i < THREAD; ++i)
        array[i] = data[(id + i) % words];
    for (uint i = 0; i < rounds; ++i)
        array[(data[i] + id) % THREAD] += array[data[i] * 7 % THREAD];
    for (uint i = 0; i < rounds; ++i)
        sum += array[data[i] * 13 % THREAD];
#endif
#if GROUP > 0
    for (uint i = gl_LocalInvocationID.x; i < GROUP; i += 128)
        group[i] = sum + i;
    barrier();
    sum += group[(sum + id) % GROUP];
#endif
    data[id % words] = sum;
}
