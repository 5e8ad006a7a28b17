#include "trainer/parallel/group_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <numeric>

#include "trainer/parallel/rank_set.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;

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

std::uint64_t GroupCommunicator::number(Collective collective, std::int64_t elements, DType dtype,
                                        int root) {
  const std::uint64_t sequence = sequence_++;
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

std::uint64_t GroupCommunicator::number_exchange(Collective collective, DType dtype,
                                                 std::span<const std::int64_t> send_counts,
                                                 std::span<const std::int64_t> receive_counts) {
  const std::uint64_t sequence = number(collective, 0, dtype);
  if (debug_ && size() > 1) compare_counts(collective, send_counts, receive_counts);
  return sequence;
}

std::uint64_t GroupCommunicator::begin(Collective collective, std::int64_t elements, DType dtype,
                                       int root) {
  engine_->begun->fetch_add(1, std::memory_order_relaxed);
  return number(collective, elements, dtype, root);
}

std::uint64_t GroupCommunicator::begin_exchange(Collective collective, DType dtype,
                                                std::span<const std::int64_t> send_counts,
                                                std::span<const std::int64_t> receive_counts) {
  engine_->begun->fetch_add(1, std::memory_order_relaxed);
  return number_exchange(collective, dtype, send_counts, receive_counts);
}

std::string GroupCommunicator::lost_members() const {
  std::string lost;
  for (const int member : group_.world_ranks)
    if (const std::string fate = engine_->transport().fate_of(member);
        member != engine_->transport().rank() && !fate.empty())
      lost += fmt::format("{}{}: {}", lost.empty() ? "" : "; ",
                          RankSet(member, engine_->host_of(member)).text(), fate);
  return lost;
}

void GroupCommunicator::compare_counts(Collective collective,
                                       std::span<const std::int64_t> send_counts,
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
          "group {}: {}: rank {} sends {} elements to rank {}, which expects {}", group_.name,
          collective_name(collective), group_.world_ranks[member], sent,
          group_.world_ranks[static_cast<std::size_t>(rank())], receive_counts[member]));
  }
}

void GroupCommunicator::run(std::shared_ptr<Operation> operation) {
  const Flight flight(engine_, operation);
  engine_->start(engine_->unordered(), operation);
  engine_->wait(*operation);
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
  // Higher than every number that a member has used, so that no two groups with two common ranks
  // have the same number.
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
    return false;  // a rank is lost
  }
}

}  // namespace sortie::trainer
