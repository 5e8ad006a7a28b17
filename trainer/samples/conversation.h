// Conversation: a line of JSONL as tokens, with a mark for each token that is a target.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

struct Conversation {
  std::vector<std::int32_t> ids{};
  std::vector<bool> counts{};  // whether each token is a target
  bool chatml = false;         // from messages, not from two texts
  bool without_end = false;    // two texts, and the vocabulary has no end of document
};

/// Converts a line to tokens. {"messages": [{"role": "user", "content": "..."}, ...]} becomes,
/// message by message, "<|im_start|>ROLE\nCONTENT<|im_end|>\n"; the targets are the content of
/// assistant messages and the mark after it. {"prompt": "...", "completion": "..."} becomes the two
/// texts and the tokenizer's end of document, if it has one below `vocab_size`; everything but the
/// prompt is a target. No tokens are added before either. Keys that would change what is trained
/// (tool_calls, function_call, tools, functions, weight, train) are errors unless they are null or
/// empty; other unknown keys are ignored. Roles other than system, developer, user, assistant and
/// tool are errors, and so are ids of `vocab_size` and above. All errors are ErrorCode::data.
Result<Conversation> read_conversation(std::string_view line, const Tokenizer& tokenizer,
                                       std::int64_t vocab_size);

}  // namespace sortie::trainer
