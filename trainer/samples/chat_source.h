// ChatSource: conversations as training samples, of which only the answers count.
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

/// Files of JSONL, one conversation a line (conversation.h), each cut to the sequence length. A
/// sample is one of them or, with data.pack_conversations, as many as fit, each up to its last
/// target; what is left of the sequence is filled up.
class ChatSource final : public SampleSource {
 public:
  /// Training samples are packed tightly, and shuffled by the seed, anew in every epoch; in
  /// validation samples the conversations come as stored. The same on any number of threads.
  /// `progress` counts the bytes of all files. ErrorCode::data names the file and the line.
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
  /// What became of the conversations in the files.
  struct Count {
    std::int64_t conversations = 0;
    std::int64_t left_out = 0;       // without a target in their first sequence_length tokens
    std::int64_t cut = 0;            // others that are longer
    std::int64_t answer_tokens = 0;  // of all conversations
    std::int64_t lost_tokens = 0;    // of these, behind the cuts
  };
  const Count& count() const { return count_; }
  /// What share of the samples' positions is filled up.
  double padding() const;
  /// Whether a line had messages, and not two texts.
  bool chatml() const { return chatml_; }

 private:
  /// `done` is told how many bytes were read.
  Result<> add_file(const std::string& file, std::string_view text, const Tokenizer& tokenizer,
                    int threads, const std::function<void(std::size_t)>& done);
  /// Of lines from `number` on.
  Result<std::vector<Conversation>> read_lines(const std::string& file, std::int64_t number,
                                               std::string_view lines,
                                               const Tokenizer& tokenizer) const;
  void add(Conversation conversation);
  void make_rows();
  /// Positions that a conversation takes of a sample.
  std::int64_t length_of(const Conversation& conversation) const {
    return std::min(static_cast<std::int64_t>(conversation.ids.size()), sequence_length_);
  }

  std::vector<Conversation> conversations_;
  PackedRows rows_;  // of conversations: the samples of an epoch
  std::int64_t sequence_length_ = 0, vocab_size_ = 0;
  Count count_;
  std::uint64_t seed_ = 0;
  bool shuffle_ = false, packed_ = false, chatml_ = false;
  std::string fingerprint_;
  std::int64_t epoch_ = -1;
  Permutation order_;  // of that epoch
};

}  // namespace sortie::trainer
