// The collectives and messages of GroupCommunicator: argument checks, and the operation that each
// starts.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "trainer/parallel/group_communicator.h"
#include "trainer/parallel/reduce_kernel.h"
#include "trainer/parallel/reduction.h"

namespace sortie::trainer {
namespace {

/// The bytes of a tensor, for the transport.
std::span<std::byte> bytes_of(const Tensor& tensor) {
  SORTIE_CHECK(tensor.defined() && tensor.dense(), "a collective takes dense tensors");
  SORTIE_CHECK(tensor.device().kind == DeviceKind::cpu, "a collective on the memory of {}",
               tensor.device().to_string());
  return {static_cast<std::byte*>(tensor.raw()),
          static_cast<std::size_t>(tensor.elements()) * dtype_bytes(tensor.dtype())};
}

struct NoWork final : CollectiveHandle {
  bool poll() override { return true; }
  void wait() override {}
  void wait_on(ExecutionContext&) override {}
};

class FlightHandle final : public CollectiveHandle {
 public:
  explicit FlightHandle(std::shared_ptr<Flight> flight) : flight_(std::move(flight)) {}
  bool poll() override { return flight_->poll(); }
  void wait() override { flight_->wait(); }
  void wait_on(ExecutionContext& context) override { context.wait(flight_); }

 private:
  std::shared_ptr<Flight> flight_;  // shared with a stream that waits for it
};

void copy_unless_same(std::span<const std::byte> from, std::span<std::byte> to) {
  if (from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

Communicator::Handle GroupCommunicator::start(std::shared_ptr<Operation> operation,
                                              std::vector<Tensor> kept) {
  auto flight = std::make_shared<Flight>(engine_, operation, std::move(kept));
  engine_->start(queue_, operation);
  return std::make_unique<FlightHandle>(std::move(flight));
}

Communicator::Handle GroupCommunicator::all_reduce_async(const Tensor& values, ReduceOp op,
                                                         const Event& ready) {
  SORTIE_CHECK(can_reduce(values.dtype(), op), "sum of {}", dtype_name(values.dtype()));
  SORTIE_CHECK(values.defined() && values.dense(), "a collective takes dense tensors");
  const auto collective =
      op == ReduceOp::sum ? Collective::all_reduce_sum : Collective::all_reduce_max;
  const std::uint64_t sequence = begin(collective, values.elements(), values.dtype());
  if (size() == 1 || values.elements() == 0) return std::make_unique<NoWork>();
  const std::string what = label(collective, sequence);
  const Reduced reduced{values.dtype(), op, values.elements()};
  const int tag = tag_of(id_, Part::data, sequence);
  const auto reduction = [this, what, reduced, tag](
                             std::span<std::byte> bytes,
                             std::span<std::byte>) -> std::unique_ptr<Operation> {
    const auto sent = static_cast<std::int64_t>(bytes.size()) * (size() - 1);
    if (sent <= GatherReduction::kUpTo)
      return std::make_unique<GatherReduction>(group_, *engine_, what, tag, reduced, bytes.data());
    const std::int64_t per_chunk = ChunkReduction::chunk_elements(reduced.elements, size());
    // The chunk of a high rank may be empty.
    const std::int64_t first = std::min(per_chunk * rank(), reduced.elements);
    std::byte* result = bytes.data() + static_cast<std::size_t>(first) * dtype_bytes(reduced.dtype);
    return std::make_unique<ChunkReduction>(
        group_, *engine_, what, tag, reduced,
        ChunkReduction::Buffers{bytes.data(), result, per_chunk, /*gather=*/true});
  };
  return start_when(ready, what, values, values, reduction);
}

Communicator::Handle GroupCommunicator::start_when(const Event& ready, const std::string& what,
                                                   const Tensor& input, const Tensor& output,
                                                   const LateOperation::Make& make) {
  if (input.device().kind == DeviceKind::cpu && ready.poll())
    return start(make(bytes_of(input), bytes_of(output)), {input, output});
  return start(std::make_shared<LateOperation>(group_, what, input, output, ready, make),
               {input, output});
}

Communicator::Handle GroupCommunicator::reduce_scatter_async(const Tensor& input,
                                                             const Tensor& output, ReduceOp op,
                                                             const Event& ready) {
  SORTIE_CHECK(can_reduce(input.dtype(), op) && input.dtype() == output.dtype() &&
                   input.elements() == output.elements() * size() && input.dense() &&
                   output.dense(),
               "reduce-scatter of {} {} into {} {} on {} ranks", input.elements(),
               dtype_name(input.dtype()), output.elements(), dtype_name(output.dtype()), size());
  const auto collective =
      op == ReduceOp::sum ? Collective::reduce_scatter_sum : Collective::reduce_scatter_max;
  const std::uint64_t sequence = begin(collective, input.elements(), input.dtype());
  if (output.elements() == 0 || is_there(input, output)) return std::make_unique<NoWork>();
  const std::string what = label(collective, sequence);
  const Reduced reduced{input.dtype(), op, input.elements()};
  const int tag = tag_of(id_, Part::data, sequence);
  return start_when(
      ready, what, input, output,
      [this, what, reduced, tag](std::span<std::byte> from,
                                 std::span<std::byte> to) -> std::unique_ptr<Operation> {
        if (size() == 1) {
          copy_unless_same(from, to);
          return std::make_unique<Exchange>(group_, engine_->transport(), what, tag,
                                            std::vector<Exchange::Block>{});
        }
        return std::make_unique<ChunkReduction>(
            group_, *engine_, what, tag, reduced,
            ChunkReduction::Buffers{from.data(), to.data(), reduced.elements / size(),
                                    /*gather=*/false});
      });
}

Communicator::Handle GroupCommunicator::all_gather_async(const Tensor& input, const Tensor& output,
                                                         const Event& ready) {
  SORTIE_CHECK(input.dtype() == output.dtype() && output.elements() == input.elements() * size() &&
                   input.dense() && output.dense(),
               "all-gather of {} {} into {} {} on {} ranks", input.elements(),
               dtype_name(input.dtype()), output.elements(), dtype_name(output.dtype()), size());
  const std::uint64_t sequence = begin(Collective::all_gather, input.elements(), input.dtype());
  if (input.elements() == 0 || is_there(input, output)) return std::make_unique<NoWork>();
  const std::string what = label(Collective::all_gather, sequence);
  const int tag = tag_of(id_, Part::data, sequence);
  return start_when(ready, what, input, output,
                    [this, what, tag](std::span<std::byte> from,
                                      std::span<std::byte> to) -> std::unique_ptr<Operation> {
                      std::vector<Exchange::Block> blocks;
                      for (int member = 0; member < size(); ++member) {
                        const auto place =
                            to.subspan(from.size() * static_cast<std::size_t>(member), from.size());
                        if (member == rank())
                          copy_unless_same(from, place);
                        else
                          blocks.push_back({member, from, place});
                      }
                      return std::make_unique<Exchange>(group_, engine_->transport(), what, tag,
                                                        std::move(blocks));
                    });
}

Communicator::Handle GroupCommunicator::broadcast_async(const Tensor& values, int root,
                                                        const Event& ready) {
  SORTIE_CHECK(root >= 0 && root < size(), "broadcast from rank {} of {}", root, size());
  SORTIE_CHECK(values.defined() && values.dense(), "a collective takes dense tensors");
  const std::uint64_t sequence =
      begin(Collective::broadcast, values.elements(), values.dtype(), root);
  if (size() == 1 || values.elements() == 0) return std::make_unique<NoWork>();
  const std::string what = label(Collective::broadcast, sequence);
  const int tag = tag_of(id_, Part::data, sequence);
  return start_when(ready, what, values, values,
                    [this, what, tag, root](std::span<std::byte> bytes,
                                            std::span<std::byte>) -> std::unique_ptr<Operation> {
                      return std::make_unique<Broadcast>(group_, engine_->transport(), what, tag,
                                                         bytes, root);
                    });
}

Communicator::Handle GroupCommunicator::all_to_all_async(
    const Tensor& input, std::span<const std::int64_t> send_counts, const Tensor& output,
    std::span<const std::int64_t> receive_counts, const Event& ready) {
  const auto sum = [](std::span<const std::int64_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  };
  const auto ranks = static_cast<std::size_t>(size());
  SORTIE_CHECK(send_counts.size() == ranks && receive_counts.size() == ranks &&
                   sum(send_counts) == input.elements() &&
                   sum(receive_counts) == output.elements() && input.dtype() == output.dtype(),
               "all-to-all: counts {} and {} for {} and {} elements on {} ranks", sum(send_counts),
               sum(receive_counts), input.elements(), output.elements(), size());
  for (std::size_t member = 0; member < ranks; ++member)
    SORTIE_CHECK(send_counts[member] >= 0 && receive_counts[member] >= 0, "a negative count");
  const auto self = static_cast<std::size_t>(rank());
  SORTIE_CHECK(send_counts[self] == receive_counts[self],
               "all-to-all: rank {} sends itself {} and expects {}", rank(), send_counts[self],
               receive_counts[self]);
  const std::size_t width = dtype_bytes(input.dtype());
  const std::uint64_t sequence =
      begin_exchange(Collective::all_to_all, input.dtype(), send_counts, receive_counts);
  const std::string what = label(Collective::all_to_all, sequence);
  const int tag = tag_of(id_, Part::data, sequence);
  return start_when(
      ready, what, input, output,
      [this, what, tag, width, sends = std::vector(send_counts.begin(), send_counts.end()),
       receives = std::vector(receive_counts.begin(), receive_counts.end())](
          std::span<std::byte> from, std::span<std::byte> to) -> std::unique_ptr<Operation> {
        std::vector<Exchange::Block> blocks;
        std::size_t sent = 0, received = 0;
        for (std::size_t member = 0; member < sends.size(); ++member) {
          const auto out = from.subspan(sent, static_cast<std::size_t>(sends[member]) * width);
          const auto in = to.subspan(received, static_cast<std::size_t>(receives[member]) * width);
          sent += out.size();
          received += in.size();
          if (member != static_cast<std::size_t>(rank()))
            blocks.push_back({static_cast<int>(member), out, in});
          else if (!out.empty())
            copy_unless_same(out, in);
        }
        return std::make_unique<Exchange>(group_, engine_->transport(), what, tag,
                                          std::move(blocks));
      });
}

Communicator::Handle GroupCommunicator::pair(const Tensor& values, int member, Direction direction,
                                             const Event& ready) {
  SORTIE_CHECK(member >= 0 && member < size() && member != rank(), "rank {} of {} talks to rank {}",
               rank(), size(), member);
  SORTIE_CHECK(values.defined() && values.dense(), "a message takes a dense tensor");
  const bool sends = direction == Direction::send;
  const std::string what = fmt::format("{} rank {}", sends ? "send to" : "receive from",
                                       group_.world_ranks[static_cast<std::size_t>(member)]);
  // All messages of a pair have one tag, so all pieces are posted at once, in the order of issue.
  const auto make = [this, what, member](std::span<std::byte> from,
                                         std::span<std::byte> to) -> std::unique_ptr<Operation> {
    constexpr std::size_t kPiece = std::size_t{1} << 30;
    return std::make_unique<Exchange>(
        group_, engine_->transport(), what, tag_of(id_, Part::pair),
        std::vector<Exchange::Block>{{member, from, to}},
        std::max<std::int64_t>(piece_count(std::max(from.size(), to.size()), kPiece), 1), kPiece);
  };
  const Tensor none, &input = sends ? values : none, &output = sends ? none : values;
  std::weak_ptr<LateOperation>& last = last_of_pair_[{member, direction}];
  std::shared_ptr<LateOperation> before = last.lock();
  if (before && before->begun()) before.reset();
  std::shared_ptr<Operation> operation;
  if (values.device().kind == DeviceKind::cpu && !before && ready.poll()) {
    const auto bytes = bytes_of(values);
    operation = sends ? make(bytes, {}) : make({}, bytes);
  } else {
    auto late = std::make_shared<LateOperation>(group_, what, input, output, ready, make,
                                                std::move(before));
    last = late;
    operation = std::move(late);
  }
  auto flight = std::make_shared<Flight>(engine_, operation, std::vector<Tensor>{values});
  engine_->start(engine_->unordered(), operation);
  return std::make_unique<FlightHandle>(std::move(flight));
}

Communicator::Handle GroupCommunicator::send_async(const Tensor& values, int to,
                                                   const Event& ready) {
  return pair(values, to, Direction::send, ready);
}

Communicator::Handle GroupCommunicator::receive_async(const Tensor& values, int from,
                                                      const Event& ready) {
  return pair(values, from, Direction::receive, ready);
}

}  // namespace sortie::trainer
