#include "trainer/parallel/reduction.h"

#include <algorithm>
#include <cstring>

#include "trainer/parallel/reduce_kernel.h"
#include "trainer/parallel/tags.h"

namespace sortie::trainer {
namespace {
constexpr std::size_t kLine = 64;

std::size_t whole_lines(std::size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}
}  // namespace

GatherReduction::GatherReduction(const GroupRanks& group, Engine& engine, std::string what, int tag,
                                 const Reduced& reduced, std::byte* values)
    : LaneOperation(group, std::move(what)),
      engine_(engine),
      reduced_(reduced),
      values_(values),
      bytes_(static_cast<std::size_t>(reduced.elements) * dtype_bytes(reduced.dtype)),
      scratch_(engine.take_scratch(bytes_ * static_cast<std::size_t>(group.size()))) {
  std::memcpy(scratch_.memory.get(), values_, bytes_);
  const int size = group.size();
  for (int there = 1; there < size; there *= 2) {
    Lane& in = add_lane(engine.transport(), (group.rank + there) % size, tag, true);
    Lane& out = add_lane(engine.transport(), (group.rank - there + size) % size, tag, false);
    const auto count = static_cast<std::size_t>(std::min(there, size - there));
    in.receive(blocks(static_cast<std::size_t>(there), count));
    rounds_.push_back({&out, &in, count});
  }
}

GatherReduction::~GatherReduction() {
  engine_.give_scratch(std::move(scratch_));
}

bool GatherReduction::advance() {
  for (; at_ < rounds_.size(); ++at_) {
    const Round& round = rounds_[at_];
    if (round.out->posted() == 0) round.out->send(blocks(0, round.blocks));
    if (!round.in->idle()) return false;
  }
  if (!lanes_idle()) return false;
  std::vector<const std::byte*> inputs;
  for (int member = 0; member < group_.size(); ++member)
    inputs.push_back(
        scratch_.memory.get() +
        bytes_ * static_cast<std::size_t>((member - group_.rank + group_.size()) % group_.size()));
  reduce_in_order(reduced_.dtype, reduced_.op, inputs, values_, reduced_.elements);
  return true;
}

std::int64_t ChunkReduction::chunk_elements(std::int64_t elements, int ranks) {
  constexpr std::int64_t kUnit = 64;  // elements: whole cache lines of every type
  const std::int64_t even = (elements + ranks - 1) / ranks;
  return (even + kUnit - 1) / kUnit * kUnit;
}

ChunkReduction::ChunkReduction(const GroupRanks& group, Engine& engine, std::string what,
                               int sequence_tag, const Reduced& reduced, const Buffers& buffers,
                               std::size_t segment)
    : LaneOperation(group, std::move(what)),
      engine_(engine),
      reduced_(reduced),
      buffers_(buffers),
      segment_(segment) {
  const int size = group.size();
  if (segment_ == 0) {
    // Scratch memory grows with the number of ranks, so segments shrink.
    constexpr std::size_t kScratch = std::size_t{32} << 20, kLeast = std::size_t{16} << 10;
    const std::size_t share = kScratch / (Lane::kWindow * static_cast<std::size_t>(size));
    segment_ = std::clamp(share / kLine * kLine, kLeast, kSegmentBytes);
  }
  const std::size_t whole =
      static_cast<std::size_t>(buffers.per_chunk) * dtype_bytes(reduced.dtype);
  segment_ = std::min(segment_, std::max(whole_lines(whole), kLine));
  inputs_.resize(static_cast<std::size_t>(size));
  const int results_tag = sequence_tag | static_cast<int>(Part::results);
  Transport& transport = engine.transport();
  const std::int64_t window =
      std::min(Lane::kWindow, std::max<std::int64_t>(segments(group.rank), 1));
  for (int step = 1; step < size; ++step) {
    Peer& peer = peers_.emplace_back();
    peer.member = (group.rank + step) % size;
    peer.values_in = &add_lane(transport, peer.member, sequence_tag, true);
    peer.values_out = &add_lane(transport, peer.member, sequence_tag, false);
    if (!buffers.gather) continue;
    peer.results_in = &add_lane(transport, peer.member, results_tag, true);
    peer.result_out = &add_lane(transport, peer.member, results_tag, false);
  }
  scratch_ = engine.take_scratch(segment_ * static_cast<std::size_t>(window) * peers_.size());
}

ChunkReduction::~ChunkReduction() {
  engine_.give_scratch(std::move(scratch_));
}

std::byte* ChunkReduction::chunk(int member) const {
  return buffers_.values + static_cast<std::size_t>(buffers_.per_chunk) *
                               static_cast<std::size_t>(member) * dtype_bytes(reduced_.dtype);
}

std::int64_t ChunkReduction::chunk_bytes(int member) const {
  const std::int64_t begin = std::min(buffers_.per_chunk * member, reduced_.elements);
  const std::int64_t end = std::min(begin + buffers_.per_chunk, reduced_.elements);
  return (end - begin) * static_cast<std::int64_t>(dtype_bytes(reduced_.dtype));
}

std::int64_t ChunkReduction::segments(int member) const {
  const auto segment = static_cast<std::int64_t>(segment_);
  return (chunk_bytes(member) + segment - 1) / segment;
}

std::size_t ChunkReduction::segment_bytes(int member, std::int64_t segment) const {
  const std::size_t begin = static_cast<std::size_t>(segment) * segment_;
  return std::min(segment_, static_cast<std::size_t>(chunk_bytes(member)) - begin);
}

std::byte* ChunkReduction::slot(std::size_t peer, std::int64_t segment) const {
  const std::int64_t window =
      std::min(Lane::kWindow, std::max<std::int64_t>(segments(group_.rank), 1));
  return scratch_.memory.get() + segment_ * (peer * static_cast<std::size_t>(window) +
                                             static_cast<std::size_t>(segment % window));
}

void ChunkReduction::post_values() {
  bool posted = true;
  while (posted) {  // one segment per peer in turn, so that all make progress
    posted = false;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[i];
      Lane& in = *peer.values_in;
      if (in.posted() < segments(group_.rank) && in.posted() < added_ + Lane::kWindow &&
          !in.full()) {
        in.receive({slot(i, in.posted()), segment_bytes(group_.rank, in.posted())});
        posted = true;
      }
      Lane& out = *peer.values_out;
      const bool near = !buffers_.gather || out.posted() < peer.results_in->finished() + kAhead;
      if (out.posted() < segments(peer.member) && near && !out.full()) {
        const std::int64_t segment = out.posted();
        out.send({chunk(peer.member) + static_cast<std::size_t>(segment) * segment_,
                  segment_bytes(peer.member, segment)});
        posted = true;
      }
    }
  }
}

void ChunkReduction::reduce_arrived() {
  const auto arrived = [&] {
    return std::ranges::all_of(peers_,
                               [&](Peer& peer) { return peer.values_in->finished() > added_; });
  };
  while (added_ < segments(group_.rank) && arrived()) {
    const std::size_t begin = static_cast<std::size_t>(added_) * segment_;
    const std::size_t bytes = segment_bytes(group_.rank, added_);
    inputs_[static_cast<std::size_t>(group_.rank)] = chunk(group_.rank) + begin;
    for (std::size_t i = 0; i < peers_.size(); ++i)
      inputs_[static_cast<std::size_t>(peers_[i].member)] = slot(i, added_);
    reduce_in_order(reduced_.dtype, reduced_.op, inputs_, buffers_.result + begin,
                    static_cast<std::int64_t>(bytes / dtype_bytes(reduced_.dtype)));
    ++added_;
  }
}

void ChunkReduction::post_results() {
  bool posted = true;
  while (posted) {
    posted = false;
    for (Peer& peer : peers_) {
      Lane& out = *peer.result_out;
      if (out.posted() < added_ && !out.full()) {
        const std::int64_t segment = out.posted();
        out.send({buffers_.result + static_cast<std::size_t>(segment) * segment_,
                  segment_bytes(group_.rank, segment)});
        posted = true;
      }
      // A result replaces values that must have been sent before.
      Lane& in = *peer.results_in;
      if (in.posted() < segments(peer.member) && in.posted() < peer.values_out->finished() &&
          !in.full()) {
        const std::int64_t segment = in.posted();
        in.receive({chunk(peer.member) + static_cast<std::size_t>(segment) * segment_,
                    segment_bytes(peer.member, segment)});
        posted = true;
      }
    }
  }
}

bool ChunkReduction::advance() {
  post_values();
  reduce_arrived();
  post_values();  // into slots that are free again
  if (buffers_.gather) post_results();
  if (added_ < segments(group_.rank)) return false;
  for (Peer& peer : peers_) {
    if (peer.values_out->posted() < segments(peer.member)) return false;
    if (!buffers_.gather) continue;
    if (peer.results_in->posted() < segments(peer.member)) return false;
    if (peer.result_out->posted() < segments(group_.rank)) return false;
  }
  return lanes_idle();
}

}  // namespace sortie::trainer
