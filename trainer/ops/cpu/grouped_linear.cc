// Products of experts with their rows. Every product has 256, 64 or 16 rows and runs on one thread,
// so that few shapes serve any distribution of tokens, the threads are evenly loaded, and the bits
// do not depend on the number of threads.
#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/cpu/packed_weight.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kPieces[] = {256, 64, kExpertRowUnit};

/// Cuts [begin, end), a multiple of kExpertRowUnit long, into pieces: visit(first, piece index).
template <class Visit>
void for_each_piece(std::int64_t begin, std::int64_t end, const Visit& visit) {
  while (begin < end) {
    std::size_t size = 0;
    while (kPieces[size] > end - begin) ++size;
    visit(begin, size);
    begin += kPieces[size];
  }
}

std::byte* element_at(const Tensor& x, std::int64_t row, std::int64_t col = 0) {
  return static_cast<std::byte*>(x.raw()) +
         static_cast<std::size_t>(row * x.stride(0) + col) * dtype_bytes(x.dtype());
}

/// oneDNN's scratch for one product per thread.
class Scratch {
 public:
  Scratch(ExecutionContext& context, std::size_t bytes)
      : each_((bytes + 63) / 64 * 64),
        memory_(context.allocator().allocate(each_ * static_cast<std::size_t>(context.threads()))) {
  }
  void* of(int thread) const {
    return static_cast<std::byte*>(memory_.get()) + each_ * static_cast<std::size_t>(thread);
  }

 private:
  std::size_t each_;
  std::shared_ptr<void> memory_;
};

/// out = in . B_e for every expert's rows, B_e [k, n] the weight's plain matrix read with strides
/// (b_row, b_col).
void grouped_product(ExecutionContext& context, const ExpertRows& rows, const Tensor& in,
                     std::span<const PackedWeight* const> weights, bool backward, Tensor& out) {
  using Product = std::shared_ptr<const Matmul>;
  struct Task {
    Product matmul;
    const void* weight;
    std::int64_t row;
  };
  const std::int64_t n = out.size(1), k = in.size(1);
  const auto matmul_of = [&](std::size_t piece) {
    return find_matmul(context, {.m = kPieces[piece],
                                 .n = n,
                                 .k = k,
                                 .input = in.dtype(),
                                 .output = out.dtype(),
                                 .a_row = in.stride(0),
                                 .b_row = 0,
                                 .b_col = 0,
                                 .c_row = out.stride(0),
                                 .single_thread = true});
  };
  const auto* first = rows.begin.data<std::int64_t>();
  std::vector<Task> tasks;
  std::vector<std::shared_ptr<const void>> held;
  std::size_t scratch_bytes = 0;
  for (std::size_t e = 0; e < weights.size(); ++e) {
    const Tensor& plain = weights[e]->plain();
    PackedForms& forms =
        backward ? copies_of(*weights[e]).backward_data : copies_of(*weights[e]).forward;
    // An expert needs at most one form per piece size, fewer than PackedForms keeps. Usually they
    // are the same.
    Product packed_for[std::size(kPieces)] = {};
    const void* packed[std::size(kPieces)] = {};
    for_each_piece(first[e], first[e + 1], [&](std::int64_t row, std::size_t piece) {
      const Product matmul = matmul_of(piece);
      scratch_bytes = std::max(scratch_bytes, matmul->scratch_bytes());
      for (std::size_t other = 0; packed[piece] == nullptr && other < std::size(kPieces); ++other)
        if (packed[other] != nullptr && packed_for[other]->packed_desc() == matmul->packed_desc())
          packed[piece] = packed[other];
      if (packed[piece] == nullptr) {
        held.push_back(forms.get(context, plain.dtype(), plain.raw(), backward ? plain.size(1) : 1,
                                 backward ? 1 : plain.size(1), matmul->packed_desc()));
        packed[piece] = held.back().get();
      }
      packed_for[piece] = matmul;
      tasks.push_back({matmul, packed[piece], row});
    });
  }
  const Scratch scratch(context, scratch_bytes);
  const dnnl::stream& stream = cpu_state(context).stream;
  parallel_tasks(context, static_cast<std::int64_t>(tasks.size()),
                 [&](std::int64_t index, int thread) {
                   const Task& task = tasks[static_cast<std::size_t>(index)];
                   task.matmul->run(stream, element_at(in, task.row), task.weight,
                                    element_at(out, task.row), nullptr, scratch.of(thread), thread);
                 });
  context.poll();
}

}  // namespace

std::int64_t grouped_piece(std::int64_t rows) {
  for (const std::int64_t piece : kPieces)
    if (piece <= rows) return piece;
  return kExpertRowUnit;
}

void CpuBackend::grouped_linear_forward(ExecutionContext& context, const ExpertRows& rows,
                                        const Tensor& x,
                                        std::span<const PackedWeight* const> weights, Tensor& y) {
  grouped_product(context, rows, x, weights, false, y);
}

void CpuBackend::grouped_linear_backward_data(ExecutionContext& context, const ExpertRows& rows,
                                              const Tensor& dy,
                                              std::span<const PackedWeight* const> weights,
                                              Tensor& dx) {
  grouped_product(context, rows, dy, weights, true, dx);
}

void CpuBackend::grouped_linear_backward_weight(ExecutionContext& context, const ExpertRows& rows,
                                                const Tensor& dy, const Tensor& x,
                                                std::span<Tensor> dw) {
  constexpr std::int64_t kBlock = 256;  // rows of dw per task
  const std::int64_t n = dy.size(1), k = x.size(1);
  const auto* first = rows.begin.data<std::int64_t>();
  const std::int64_t blocks = (n + kBlock - 1) / kBlock;
  std::size_t scratch_bytes = 0;
  // Indexed by piece size of the tokens, and by whether the block is the last, shorter one.
  std::shared_ptr<const Matmul> matmuls[std::size(kPieces)][2] = {};
  const auto find = [&](std::size_t piece, bool last) {
    std::shared_ptr<const Matmul>& matmul = matmuls[piece][last ? 1 : 0];
    if (matmul == nullptr)
      matmul = find_matmul(context, {.m = last ? n - (blocks - 1) * kBlock : kBlock,
                                     .n = k,
                                     .k = kPieces[piece],
                                     .input = dy.dtype(),
                                     .output = DType::f32,
                                     .a_row = 1,
                                     .a_col = dy.stride(0),
                                     .b_row = x.stride(0),
                                     .c_row = k,
                                     .accumulate = true,
                                     .single_thread = true});
    scratch_bytes = std::max(scratch_bytes, matmul->scratch_bytes());
  };
  for (std::size_t e = 0; e < dw.size(); ++e)
    for_each_piece(first[e], first[e + 1], [&](std::int64_t, std::size_t piece) {
      if (blocks > 1) find(piece, false);
      find(piece, true);
    });
  const Scratch scratch(context, scratch_bytes);
  const dnnl::stream& stream = cpu_state(context).stream;
  parallel_tasks(
      context, static_cast<std::int64_t>(dw.size()) * blocks, [&](std::int64_t task, int thread) {
        const auto e = static_cast<std::size_t>(task / blocks);
        if (!dw[e].defined()) return;
        const std::int64_t block = task % blocks;
        for_each_piece(first[e], first[e + 1], [&](std::int64_t row, std::size_t piece) {
          matmuls[piece][block + 1 == blocks ? 1 : 0]->run(
              stream, element_at(dy, row, block * kBlock), element_at(x, row),
              dw[e].data<float>() + block * kBlock * k, nullptr, scratch.of(thread), thread);
        });
      });
  context.poll();
}

}  // namespace sortie::trainer::ops
