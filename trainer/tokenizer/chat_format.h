// ChatML: how conversations become text, and which tokenizers and templates go with that.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

/// The marks of a message: "<|im_start|>ROLE\nCONTENT<|im_end|>\n".
inline constexpr std::string_view kChatBegin = "<|im_start|>", kChatEnd = "<|im_end|>";

/// The marks as tokens. Absent: the tokenizer splits that mark into several.
struct ChatMarks {
  std::optional<std::int32_t> begin{}, end{};
  bool whole() const { return begin && end; }
};
ChatMarks chat_marks(const Tokenizer& tokenizer);

/// ChatML as a chat template of transformers (Jinja): what training makes of conversations, and
/// with add_generation_prompt the beginning of an answer. It adds nothing before the first message.
std::string_view chatml_template();
/// Whether a chat template writes messages as ChatML does.
bool is_chatml(std::string_view chat_template);

/// The chat template of a Hugging Face folder, in the order of transformers: chat_template.jinja,
/// chat_template.json, tokenizer_config.json. `read` gives the content of a file of the folder,
/// absent where there is none. Absent: the folder has no template, or one that is no text.
std::optional<std::string> find_chat_template(
    const std::function<std::optional<std::string>(std::string_view name)>& read);

}  // namespace sortie::trainer
