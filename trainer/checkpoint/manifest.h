// Manifest: everything in a checkpoint besides the bytes of its tensors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "trainer/checkpoint/piece.h"
#include "trainer/checkpoint/rollbacks.h"
#include "trainer/checkpoint/safetensors.h"

namespace sortie::trainer {

/// One tensor of a shard file: a piece of a tensor of the job.
struct StoredPiece {
  std::string key{};   // its name in the shard
  std::string name{};  // the tensor's global name
  StorageType type = StorageType::f32;
  Dims shape{};  // of the whole tensor
  Piece piece{};
};

/// What the writer of a shard reports to rank 0.
struct ShardInfo {
  std::string file{};  // name in the checkpoint's folder
  std::uint64_t bytes = 0;
  std::string sha256{};
  std::vector<StoredPiece> pieces{};
};

/// Conversion to and from text, to be sent from rank to rank (through MPI).
std::string serialize(const ShardInfo& shard);
Result<ShardInfo> parse_shard_info(std::string_view text);

struct Manifest {
  std::string run_id{};
  std::string
      first_run_id{};  // of the run that wrote the lineage's first checkpoint; empty = unknown
  /// The lineage of this checkpoint: an identity that the first checkpoint of a run starts and
  /// every later one carries (lineage.h). Empty in checkpoints of older versions.
  std::string lineage{};
  /// The checkpoint that the lineage started from; none: the seed, or not recorded.
  struct Origin {
    std::string lineage{};
    std::int64_t step = 0;
    std::string folder{};  // where it was, for information
    bool operator==(const Origin&) const = default;
  };
  std::optional<Origin> origin{};
  std::int64_t step = 0;
  std::uint64_t consumed_samples = 0;
  std::uint64_t tokens = 0;
  std::uint64_t seed = 0;
  std::int64_t created = 0;  // seconds since 1970
  std::int64_t world_size = 1;
  std::string config_digest{};
  std::string config{};                     // the resolved config, as TOML
  std::map<std::string, double> scalars{};  // finite: learning rate, beta powers ...
  std::map<std::string, std::int64_t> counters{};
  /// What the bits of a resumed run depend on: "instruction set", "threads", "oneDNN", "build" ...
  std::map<std::string, std::string> depends_on{};
  /// How a GPU computes its products (trainer/ops/products.h); empty = the CPU.
  std::string product_choices{};
  /// The rollbacks of the run before this checkpoint was saved, in order.
  std::vector<Rollback> rollbacks{};
  /// Saved soon after a spike of the loss: loaded only if there is no other.
  bool suspect = false;

  struct File {
    std::string file{};  // path in the checkpoint's folder
    std::uint64_t bytes = 0;
    std::string sha256{};
  };
  /// The files besides the shards (extra_files.h). None in checkpoints of older versions.
  std::vector<File> files{};

  /// Set by add_shards() from what the ranks report.
  struct PlacedPiece {
    std::size_t shard = 0;  // index into shards
    std::string key{};
    Piece piece{};
  };
  struct Tensor {
    StorageType type = StorageType::f32;
    Dims shape{};
    std::vector<PlacedPiece> pieces{};
  };
  std::vector<File> shards{};
  std::map<std::string, Tensor> tensors{};

  std::uint64_t shard_bytes() const;
};

/// Sets `shards` and `tensors`. ErrorCode::checkpoint if ranks disagree about a tensor's type or
/// shape, or if the pieces of a tensor leave a gap or overlap.
Result<> add_shards(Manifest& manifest, const std::vector<ShardInfo>& shards);

std::string to_json(const Manifest& manifest);
/// Parses a manifest and checks everything, including the tiling of the tensors. Safe on any text.
Result<Manifest> parse_manifest(std::string_view text, std::string_view where);

/// Returns the keys of depends_on whose values differ, each as "key: was X, is Y"; empty = a resume
/// is bit-identical.
std::vector<std::string> differences(const std::map<std::string, std::string>& was,
                                     const std::map<std::string, std::string>& is);

}  // namespace sortie::trainer
