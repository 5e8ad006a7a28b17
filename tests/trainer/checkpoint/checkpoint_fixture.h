// A small job for checkpoint tests. Its whole state is a function of the step, and any number of
// writers can save it.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/shard_file.h"
#include "trainer/checkpoint/store.h"

namespace sortie::trainer::test_job {

struct Spec {
  std::string name;
  Dims shape;
};

inline const std::vector<Spec>& specs() {
  static const std::vector<Spec> list = {
      {"layers.0.weight", {16, 24}}, {"layers.0.bias", {24}}, {"scale", {}}, {"odd", {7, 3, 5}}};
  return list;
}

inline std::vector<float> values(const Spec& spec, std::int64_t step) {
  std::vector<float> result(static_cast<std::size_t>(*num_elements(spec.shape)));
  for (std::size_t i = 0; i < result.size(); ++i)
    result[i] = static_cast<float>(step) + 0.001f * static_cast<float>(i) +
                static_cast<float>(spec.name.size());
  return result;
}

/// Returns the part of a tensor that writer `index` of `writers` saves: a flat interval, as ZeRO
/// cuts.
inline Piece flat_cut(const Dims& shape, std::size_t index, std::size_t writers) {
  const auto elements = static_cast<std::size_t>(*num_elements(shape));
  return Piece::interval(shape, static_cast<std::int64_t>(elements * index / writers),
                         static_cast<std::int64_t>(elements * (index + 1) / writers));
}

inline Result<ShardInfo> write_one(const std::filesystem::path& folder, std::int64_t step,
                                   std::size_t index, std::size_t writers) {
  std::vector<std::vector<float>> data;
  std::vector<PieceToWrite> pieces;
  for (const Spec& spec : specs()) data.push_back(values(spec, step));
  for (std::size_t i = 0; i < specs().size(); ++i) {
    const Spec& spec = specs()[i];
    const Piece piece = flat_cut(spec.shape, index, writers);
    pieces.push_back(
        {.name = spec.name,
         .type = StorageType::f32,
         .shape = spec.shape,
         .piece = piece,
         .data = std::as_bytes(std::span(data[i]).subspan(
             static_cast<std::size_t>(piece.begin), static_cast<std::size_t>(piece.elements())))});
  }
  return write_shard(folder, index, writers, pieces);
}

inline Manifest manifest_of(std::int64_t step) {
  return {.run_id = "test",
          .step = step,
          .consumed_samples = static_cast<std::uint64_t>(step) * 8,
          .tokens = static_cast<std::uint64_t>(step) * 2048,
          .seed = 42,
          .created = 1700000000,
          .world_size = 2,
          .config_digest = "digest",
          .config = "[trainer]\nseed = 42\n",
          .scalars = {{"learning_rate", 0.1 + 0.2}, {"beta1_power", 1e-300}},
          .counters = {{"skipped", 3}},
          .depends_on = {{"isa", "avx512_core_bf16"}, {"threads", "1"}},
          .product_choices = "# how\n64 96: 1f\n"};
}

inline Result<std::filesystem::path> save(CheckpointStore& store, std::int64_t step,
                                          std::size_t writers = 2) {
  SORTIE_ASSIGN_OR_RETURN(const std::filesystem::path folder, store.begin(step, 10'000));
  std::vector<ShardInfo> shards;
  for (std::size_t i = 0; i < writers; ++i) {
    SORTIE_ASSIGN_OR_RETURN(ShardInfo shard, write_one(folder, step, i, writers));
    // Converts the shard to the text that ranks send, and back.
    SORTIE_ASSIGN_OR_RETURN(ShardInfo received, parse_shard_info(serialize(shard)));
    shards.push_back(std::move(received));
  }
  return store.commit(folder, manifest_of(step), shards);
}

/// Returns whether every value of the checkpoint is that of step `step`.
inline bool holds_step(const std::filesystem::path& folder, std::int64_t step) {
  auto reader = CheckpointReader::open(folder, CheckDepth::hashes);
  if (!reader || reader->manifest().step != step) return false;
  for (const Spec& spec : specs()) {
    const std::vector<float> expected = values(spec, step);
    std::vector<float> read(expected.size());
    if (!reader->read(spec.name, StorageType::f32, spec.shape, Piece::whole(spec.shape),
                      std::as_writable_bytes(std::span(read))))
      return false;
    if (read != expected) return false;
  }
  return true;
}

}  // namespace sortie::trainer::test_job
