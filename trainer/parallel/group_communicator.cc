#include "trainer/parallel/group_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>

#include "trainer/parallel/reduce_kernel.h"
#include "trainer/parallel/reduction.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;

/// Where a tensor's values are for the transport.
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
  std::shared_ptr<Flight> flight_;  // also of a stream that waits for it
};

bool debug_from_environment() {
  const char* text = std::getenv("SORTIE_COMM_DEBUG");
  const std::string_view value = text == nullptr ? "" : text;
  if (value.empty() || value == "0") return false;
  if (value == "1") return true;
  throw CommunicatorError(
      fmt::format("environment: SORTIE_COMM_DEBUG='{}': 0 or 1 is expected", value));
}

GroupRanks world_of(const Transport& transport) {
  GroupRanks world;
  world.name = "world";
  world.rank = transport.rank();
  world.world_ranks.resize(static_cast<std::size_t>(transport.size()));
  std::iota(world.world_ranks.begin(), world.world_ranks.end(), 0);
  return world;
}

void copy_unless_same(std::span<const std::byte> from, std::span<std::byte> to) {
  if (from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

void Communicator::all_reduce_sum(std::span<double> values) {
  if (values.empty()) return;
  all_reduce(Tensor::wrap(values.data(), DType::f64, {static_cast<std::int64_t>(values.size())}),
             ReduceOp::sum);
}

void Communicator::broadcast(std::span<std::byte> bytes, int root) {
  if (bytes.empty()) return;
  broadcast(Tensor::wrap(bytes.data(), DType::u8, {static_cast<std::int64_t>(bytes.size())}), root);
}

GroupCommunicator::GroupCommunicator(std::unique_ptr<Transport> transport)
    : engine_(std::make_shared<Engine>(std::move(transport))),
      group_(world_of(engine_->transport())),
      id_(0),
      debug_(debug_from_environment()) {
  engine_->add(queue_);
}

GroupCommunicator::GroupCommunicator(std::shared_ptr<Engine> engine, GroupRanks group, int id,
                                     bool debug)
    : engine_(std::move(engine)), group_(std::move(group)), id_(id), debug_(debug) {
  engine_->add(queue_);
}

GroupCommunicator::~GroupCommunicator() {
  SORTIE_CHECK(queue_.operations.empty() || engine_->broken() || std::uncaught_exceptions() > 0,
               "group {} goes before its collectives are done", group_.name);
  engine_->remove(queue_);
}

std::string GroupCommunicator::label(Collective collective, std::uint64_t sequence) const {
  return fmt::format("{} {}", collective_name(collective), sequence);
}

std::uint64_t GroupCommunicator::begin(Collective collective, std::int64_t elements, DType dtype,
                                       int root) {
  const std::uint64_t sequence = sequence_++;
  engine_->begun.fetch_add(1, std::memory_order_relaxed);
  if (!debug_ || size() == 1) return sequence;
  std::vector<Signature> all(static_cast<std::size_t>(size()));
  Signature& mine = all[static_cast<std::size_t>(rank())];
  mine = {static_cast<std::int64_t>(sequence), elements, collective,
          static_cast<std::int32_t>(dtype),    root,     0};
  std::vector<std::span<std::byte>> places;
  for (Signature& one : all) places.push_back(std::as_writable_bytes(std::span(&one, 1)));
  gather_bytes(std::as_bytes(std::span(&mine, 1)), places, Part::agree, 0,
               "comparison before " + label(collective, sequence));
  const std::string difference = describe_difference(all, group_.world_ranks);
  if (!difference.empty()) engine_->fail_with(fmt::format("group {}: {}", group_.name, difference));
  return sequence;
}

std::uint64_t GroupCommunicator::begin_all_to_all(DType dtype,
                                                  std::span<const std::int64_t> send_counts,
                                                  std::span<const std::int64_t> receive_counts) {
  const std::uint64_t sequence = begin(Collective::all_to_all, 0, dtype);
  if (debug_ && size() > 1) compare_counts(send_counts, receive_counts);
  return sequence;
}

std::string GroupCommunicator::lost_members() const {
  std::string lost;
  for (const int member : group_.world_ranks)
    if (const std::string fate = engine_->transport().fate_of(member);
        member != engine_->transport().rank() && !fate.empty())
      lost += fmt::format("{}rank {}: {}", lost.empty() ? "" : "; ", member, fate);
  return lost;
}

void GroupCommunicator::compare_counts(std::span<const std::int64_t> send_counts,
                                       std::span<const std::int64_t> receive_counts) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::int64_t> all(ranks * ranks);
  std::vector<std::span<std::byte>> places;
  for (std::size_t member = 0; member < ranks; ++member)
    places.push_back(std::as_writable_bytes(std::span(all).subspan(member * ranks, ranks)));
  gather_bytes(std::as_bytes(send_counts), places, Part::agree, 0, "comparison of counts");
  for (std::size_t member = 0; member < ranks; ++member) {
    const std::int64_t sent = member == static_cast<std::size_t>(rank())
                                  ? send_counts[member]
                                  : all[member * ranks + static_cast<std::size_t>(rank())];
    if (sent != receive_counts[member])
      engine_->fail_with(fmt::format(
          "group {}: all-to-all: rank {} sends {} elements to rank {}, which expects {}",
          group_.name, group_.world_ranks[member], sent,
          group_.world_ranks[static_cast<std::size_t>(rank())], receive_counts[member]));
  }
}

void GroupCommunicator::run(std::shared_ptr<Operation> operation) {
  const Flight flight(engine_, operation);
  engine_->start(engine_->unordered(), operation);
  engine_->wait(*operation);
}

Communicator::Handle GroupCommunicator::start(std::shared_ptr<Operation> operation,
                                              std::vector<Tensor> kept) {
  auto flight = std::make_shared<Flight>(engine_, operation, std::move(kept));
  engine_->start(queue_, operation);
  return std::make_unique<FlightHandle>(std::move(flight));
}

void GroupCommunicator::gather_bytes(std::span<const std::byte> mine,
                                     std::span<const std::span<std::byte>> others, Part part,
                                     std::uint64_t sequence, std::string what) {
  std::vector<Exchange::Block> blocks;
  for (int member = 0; member < size(); ++member)
    if (member != rank())
      blocks.push_back({member, mine, others[static_cast<std::size_t>(member)]});
  run(std::make_shared<Exchange>(group_, engine_->transport(), std::move(what),
                                 tag_of(id_, part, sequence), std::move(blocks)));
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
  const std::uint64_t sequence = begin_all_to_all(input.dtype(), send_counts, receive_counts);
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

void GroupCommunicator::barrier() {
  const std::uint64_t sequence = begin(Collective::barrier);
  if (size() == 1) return;
  run(std::make_shared<Barrier>(group_, engine_->transport(), label(Collective::barrier, sequence),
                                tag_of(id_, Part::data, sequence)));
}

std::unique_ptr<Communicator> GroupCommunicator::split(int color, int key, std::string name) {
  struct Choice {
    std::int64_t color, key, next_group;
  };
  const std::uint64_t sequence = begin(Collective::split);
  std::vector<Choice> all(static_cast<std::size_t>(size()));
  Choice& mine = all[static_cast<std::size_t>(rank())];
  mine = {color, key, engine_->next_group};
  std::vector<std::span<std::byte>> places;
  for (Choice& one : all) places.push_back(std::as_writable_bytes(std::span(&one, 1)));
  gather_bytes(std::as_bytes(std::span(&mine, 1)), places, Part::data, sequence,
               label(Collective::split, sequence));
  // Above every number that a member has used: no two groups that share two ranks have one number.
  const int id = static_cast<int>(std::ranges::max(all, {}, &Choice::next_group).next_group);
  engine_->next_group = id + 1;
  if (color < 0) return nullptr;
  std::vector<int> members;
  for (int member = 0; member < size(); ++member)
    if (all[static_cast<std::size_t>(member)].color == color) members.push_back(member);
  std::ranges::stable_sort(members, {},
                           [&](int member) { return all[static_cast<std::size_t>(member)].key; });
  GroupRanks group;
  group.name = std::move(name);
  group.rank = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
  for (const int member : members)
    group.world_ranks.push_back(group_.world_ranks[static_cast<std::size_t>(member)]);
  return std::unique_ptr<Communicator>(
      new GroupCommunicator(engine_, std::move(group), id, debug_));
}

std::vector<std::string> GroupCommunicator::all_gather(std::string_view text) {
  const std::uint64_t sequence = begin(Collective::all_gather_text);
  const std::uint64_t second = sequence_++;
  const std::string what = label(Collective::all_gather_text, sequence);
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size()));
  std::vector<std::span<std::byte>> places;
  for (std::uint64_t& length : lengths)
    places.push_back(std::as_writable_bytes(std::span(&length, 1)));
  const std::uint64_t mine = text.size();
  gather_bytes(std::as_bytes(std::span(&mine, 1)), places, Part::data, sequence, what);
  lengths[static_cast<std::size_t>(rank())] = mine;
  std::vector<std::string> out(lengths.size());
  places.clear();
  for (std::size_t member = 0; member < out.size(); ++member) {
    out[member].resize(lengths[member]);
    places.push_back(std::as_writable_bytes(std::span(out[member])));
  }
  gather_bytes(std::as_bytes(std::span(text)), places, Part::data, second, what);
  out[static_cast<std::size_t>(rank())] = text;
  return out;
}

bool GroupCommunicator::meet(std::chrono::milliseconds limit) {
  if (size() == 1) return true;
  const auto begun = Clock::now();
  try {
    Barrier barrier(group_, engine_->transport(), "meeting", tag_of(id_, Part::meet));
    for (;;) {
      engine_->transport().progress();
      if (barrier.advance()) return true;
      const auto waited = Clock::now() - begun;
      if (waited >= limit) return false;
      engine_->transport().pause(waited);
    }
  } catch (const CommunicatorError&) {
    return false;  // of a rank that is lost
  }
}

}  // namespace sortie::trainer
