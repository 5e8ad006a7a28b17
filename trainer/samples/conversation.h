// Conversation: a line of JSONL as tokens, and which of them are targets.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

struct Conversation {
  std::vector<std::int32_t> ids{};
  std::vector<bool> counts{};  // whether the token is a target
  bool chatml = false;         // of messages, not of two texts
};

/// {"messages": [{"role": "user", "content": "..."}, ...]} becomes, message by message,
/// "<|im_start|>ROLE\nCONTENT<|im_end|>\n", where what an assistant says and the mark behind it are
/// targets; {"prompt": "...", "completion": "..."} becomes the two texts and the tokenizer's end of
/// document, where all but the prompt are targets. No tokens are put before either. Keys that would
/// change what is trained (tool_calls, function_call, tools, functions, weight, train) are errors
/// unless they are null or empty, other unknown keys are ignored. Roles other than system,
/// developer, user, assistant and tool are errors, as are ids of `vocab_size` and above:
/// ErrorCode::data.
Result<Conversation> read_conversation(std::string_view line, const Tokenizer& tokenizer,
                                       std::int64_t vocab_size);

}  // namespace sortie::trainer
