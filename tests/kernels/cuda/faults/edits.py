"""Faults that are edits of a source: for each the file, the text (which stands there once), the fault
in its place, and the test that must fail. `source`: the source that includes the file, if that is a header."""

EMULATED, RACES, HOST = "cuda_emulated_test", "cuda_races_test", "cuda_host_test"


def edit(name, file, old, new, test, tests, source=None):
    return {"name": name, "file": "kernels/cuda/" + file, "old": old, "new": new, "test": test, "tests": tests,
            "source": "kernels/cuda/" + (source or file)}


EDITS = [
    # ---- the host
    edit("early host read: a download does not wait", "stream.cpp",
         "cudaMemcpyDefault, handle_));\n  synchronize();", "cudaMemcpyDefault, handle_));", HOST, "*"),
    edit("early kernel: an upload returns before it has landed", "stream.cpp",
         "  check(cudaStreamSynchronize(cudaStreamLegacy));\n", "", HOST, "*"),
    edit("collected numbers are delivered before the wait", "stream.cpp",
         "  check(cudaStreamSynchronize(handle_));\n", "", HOST, "*"),
    edit("the ring of plans begins anew at each wait", "stream.cpp",
         "  staged_ = 0;\n", "  staged_ = 0;\n  head_ = 0;\n", HOST, "*"),
    edit("the ring of plans is never waited for", "stream.cpp",
         "if (staged_ + taken > kPlanBytes / 2) {", "if (staged_ + taken > 100 * kPlanBytes) {", HOST, "*"),
    edit("a mirrored plan is taken for one with other content", "stream.cpp",
         "known.bytes == bytes &&\n        std::memcmp(pinned_ + known.offset, plan, bytes) == 0",
         "known.bytes == bytes", HOST, "*"),
    edit("teardown: memory is freed before the stream's work", "stream.cpp",
         "  cudaStreamSynchronize(handle_);  // copies may still read the memory below\n", "", HOST, "*"),
    edit("teardown: memory that outlives the runtime aborts", "memory.cpp",
         "error == cudaErrorCudartUnloading ? cudaSuccess : error", "error", HOST, "*"),
    edit("a failed allocation leaves its error behind", "memory.cpp",
         "    cudaGetLastError();\n", "", HOST, "*"),
    edit("an illegal call in a capture: a wait", "recording.cpp",
         "cudaStreamCaptureModeThreadLocal));\n", "cudaStreamCaptureModeThreadLocal));\n    stream.synchronize();\n",
         HOST, "*"),
    edit("an illegal call in a capture: an allocation", "recording.cpp",
         "cudaStreamCaptureModeThreadLocal));\n",
         "cudaStreamCaptureModeThreadLocal));\n    void* extra = nullptr;\n    cudaMalloc(&extra, 8);\n", HOST, "*"),
    edit("a recording starts with the plan before", "recording.cpp",
         "    on.put_recorded(plan);\n", "", HOST, "*"),
    # ---- the host's part of ops
    edit("early host read: a snapshot is read before its kernel", "pages/kv_swap.cu",
         "    wait(stream);\n    after(slice);", "    after(slice);", EMULATED, "*CudaPages*:*CudaCompression*"),
    edit("early host read: results of a compression", "compress/kv_compress.cu",
         "  simt::wait(stream);\n", "", EMULATED, "*CudaCompression*"),
    # ---- kernels
    edit("a swapped index: a block's sequence and its KV head", "attention/attention.cu",
         "return {block_x() / args.pages.kv_heads, block_x() % args.pages.kv_heads};",
         "return {block_x() % args.pages.kv_heads, block_x() / args.pages.kv_heads};", EMULATED, "*Attention*"),
    edit("copies are read before the wait", "attention/sparse_parts.h", "    simt::wait_for_copies();\n", "",
         EMULATED, "*CudaAttention*", source="attention/attention.cu"),
    edit("a table of starts has those of the token before", "attention/sparse_parts.h",
         "of_lane[i].template index<kUnits>(simt::lane() % kTokens)",
         "of_lane[i].template index<kUnits>(simt::lane() % kTokens / 2 * 2)", EMULATED, "*CudaAttention*",
         source="attention/attention.cu"),
    edit("a swapped index: channel and token of a stored key", "pages/kv_store.cu",
         "residual_.keys_offset(tile) + residual_.key_offset(lane, channel)",
         "residual_.keys_offset(tile) + residual_.key_offset(channel % kTile, lane)", EMULATED, "*CudaPages*"),
    edit("a swapped index: places of the two ends of a fork", "pages/kv_pool.cu",
         "i < row.high_full ? i : last - (i - row.high_full)",
         "i < row.low_full ? i : last - (i - row.low_full)", EMULATED, "*CudaPages*"),
    edit("neighbouring groups of a tile are stored by two blocks", "pages/kv_store.cu",
         "grid_y() > 1 && args.pages.rows[row].high % kTile != 0", "row < 0", EMULATED, "*CudaPages*"),
    edit("neighbouring groups of a tile are stored by two blocks", "pages/kv_store.cu",
         "grid_y() > 1 && args.pages.rows[row].high % kTile != 0", "row < 0", RACES, "*CloseGroups*"),
    edit("every thread of a row clears its counts", "pages/kv_pool.cu",
         "if (i % pages.row_pages == 0) {", "{", RACES, "*TakeThePages*"),
    edit("the free range is written back by every thread, early", "pages/kv_pool.cu",
         "  free_list.finish();\n}\n\n// ---- forks",
         "  *pool.free_range = {};\n  free_list.finish();\n}\n\n// ---- forks", RACES, "*TakeThePages*"),
    edit("a sum that is not atomic", "pages/kv_pool.cu",
         "atomic_add(&taken[i / slot_rows(pool)], missing)", "taken[i / slot_rows(pool)] += missing", RACES,
         "*TakeThePages*"),
]
