// ChatSource: conversations as training samples, of which only the answers count.
#pragma once

#include <memory>
#include <vector>

#include "common/config/schema.h"
#include "trainer/data/permutation.h"
#include "trainer/samples/sample_source.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

/// JSONL, one a line: {"messages": [{"role": "user", "content": "..."}, ...]} becomes, message by
/// message, "<|im_start|>ROLE\nCONTENT<|im_end|>\n", where what an assistant says and the mark
/// behind it are targets; {"prompt": "...", "completion": "..."} becomes the two texts and the
/// tokenizer's end of document, where all but the prompt are targets. No tokens are put before
/// either. Keys that would change what is trained (tool_calls, function_call, tools, functions,
/// weight, train) are errors unless they are null or empty, other unknown keys are ignored. Roles
/// other than system, developer, user, assistant and tool are errors. A sample is one conversation,
/// its beginning if it is too long, filled up behind its end.
class ChatSource final : public SampleSource {
 public:
  /// Training samples are shuffled by the seed, anew in every epoch; validation samples come as
  /// stored. ErrorCode::data names the file and the line.
  static Result<std::unique_ptr<ChatSource>> open(const config::JobConfig& job,
                                                  const std::vector<std::string>& files,
                                                  const Tokenizer& tokenizer, bool shuffle);

  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override;
  std::string fingerprint() const override { return fingerprint_; }
  bool masks_targets() const override { return true; }
  std::int64_t samples_per_epoch() const override {
    return static_cast<std::int64_t>(conversations_.size());
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
  /// What share of the samples' positions is behind the end of a conversation.
  double padding() const;
  /// Whether a line had messages, and not two texts.
  bool chatml() const { return chatml_; }

 private:
  struct Conversation {
    std::vector<std::int32_t> ids;
    std::vector<bool> counts;  // whether the token is a target
  };
  struct Part {
    std::string text;
    bool counts = false;
  };
  static Result<std::vector<Part>> parse_conversation(std::string_view line);
  Result<> add_line(const std::string& line, const std::string& where, const Tokenizer& tokenizer);
  Result<Conversation> tokenize(const std::vector<Part>& parts, const Tokenizer& tokenizer) const;

  std::vector<Conversation> conversations_;
  std::int64_t sequence_length_ = 0, vocab_size_ = 0;
  Count count_;
  std::uint64_t seed_ = 0;
  bool shuffle_ = false, chatml_ = false;
  std::string fingerprint_;
  std::int64_t epoch_ = -1;
  Permutation order_;  // of that epoch
};

}  // namespace sortie::trainer
