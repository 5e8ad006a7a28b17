// ChatSource: training samples from conversations. Only the answers are targets.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "common/config/schema.h"
#include "trainer/data/permutation.h"
#include "trainer/samples/conversation.h"
#include "trainer/samples/packing.h"
#include "trainer/samples/sample_source.h"
#include "trainer/storage/work_progress.h"

namespace sortie::trainer {

/// Reads files of JSONL, one conversation per line (conversation.h), each cut to the sequence
/// length. A sample is one conversation or, with data.pack_conversations, as many as fit, each up
/// to its last target. The rest of the sequence is padding.
class ChatSource final : public SampleSource {
 public:
  /// With `shuffle` (training), samples are shuffled by the seed, differently in every epoch, and
  /// data.pack_conversations packs tightly. Without (validation), conversations are in stored
  /// order. The result does not depend on `threads`. `progress` counts the bytes of all files.
  /// ErrorCode::data names the file and the line.
  static Result<std::unique_ptr<ChatSource>> open(const config::JobConfig& job,
                                                  const std::vector<std::string>& files,
                                                  const Tokenizer& tokenizer, bool shuffle,
                                                  int threads = 1, const OnProgress& progress = {});

  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override;
  std::string fingerprint() const override { return fingerprint_; }
  bool masks_targets() const override { return true; }
  bool packed() const override { return packed_; }
  std::int64_t samples_per_epoch() const override {
    return static_cast<std::int64_t>(rows_.size());
  }
  /// Statistics of the conversations in the files.
  struct Count {
    std::int64_t conversations = 0;
    std::int64_t left_out = 0;       // without a target before the cut
    std::int64_t cut = 0;            // others that were cut
    std::int64_t answer_tokens = 0;  // in all conversations
    std::int64_t lost_tokens = 0;    // of these, after the cuts
    std::int64_t without_end = 0;    // two texts without the end of a document after them
  };
  const Count& count() const { return count_; }
  /// Warns of answers that get no end because model.vocab_size lacks it; empty if there are none.
  std::string missing_ends(const Tokenizer& tokenizer) const;
  /// Fraction of the samples' positions that is padding.
  double padding() const;
  /// Whether any line had messages instead of two texts.
  bool chatml() const { return chatml_; }

 private:
  /// Calls `done` with the number of bytes of each chunk that was read.
  Result<> add_file(const std::string& file, std::string_view text, const Tokenizer& tokenizer,
                    int threads, const std::function<void(std::size_t)>& done);
  /// Parses `lines`, the first of which has this number.
  Result<std::vector<Conversation>> read_lines(const std::string& file, std::int64_t number,
                                               std::string_view lines,
                                               const Tokenizer& tokenizer) const;
  void add(Conversation conversation);
  void make_rows();
  /// Number of positions that a conversation occupies in a sample.
  std::int64_t length_of(const Conversation& conversation) const {
    return std::min(static_cast<std::int64_t>(conversation.ids.size()), sequence_length_);
  }

  std::vector<Conversation> conversations_;
  PackedRows rows_;  // numbers of conversations; one row per sample of an epoch
  std::int64_t sequence_length_ = 0, vocab_size_ = 0;
  Count count_;
  std::uint64_t seed_ = 0;
  bool shuffle_ = false, packed_ = false, chatml_ = false;
  std::string fingerprint_;
  std::int64_t epoch_ = -1;
  Permutation order_;  // of epoch_
};

}  // namespace sortie::trainer
