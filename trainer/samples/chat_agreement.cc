#include "trainer/samples/chat_agreement.h"

#include <fmt/format.h>

#include "common/base/atomic_file.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;

struct FoundTemplate {
  std::string text;
  std::string place;
};

/// Returns the chat template that exports of the run would have if it had no conversations: that of
/// the run's tokenizer, otherwise the one that the weights came with.
std::optional<FoundTemplate> find_template(const RunTokenizer& run, const fs::path& start) {
  const auto in_files = [&run](std::string_view name) -> std::optional<std::string> {
    const auto found = run.files->contents.find(std::string(name));
    return found == run.files->contents.end() ? std::nullopt : std::optional(found->second);
  };
  if (auto text = find_chat_template(in_files))
    return FoundTemplate{std::move(*text), "the folder of " + run.files->id.name};
  if (start.empty()) return std::nullopt;
  for (const std::string_view room : {kTokenizerFolder, kHfNotes}) {
    const auto in_folder = [&](std::string_view name) -> std::optional<std::string> {
      auto content = read_file(start / room / name);
      return content ? std::optional(std::move(*content)) : std::nullopt;
    };
    if (auto text = find_chat_template(in_folder))
      return FoundTemplate{std::move(*text), (start / room).string()};
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<std::string>> check_chatml(const RunTokenizer& run, const fs::path& start) {
  std::vector<std::string> notes;
  if (!run.chatml || !run.files) return notes;
  if (!run.files->chat_marks.whole()) {
    const std::string problem = fmt::format(
        "data.tokenizer: {} does not have {} and {} as single tokens, which conversations with "
        "\"messages\" are written with",
        describe(run.files->id), kChatBegin, kChatEnd);
    std::error_code ignored;
    if (!start.empty() && fs::is_directory(start / kHfNotes, ignored))
      return fail(ErrorCode::data,
                  fmt::format("{}; the imported model in {} does not know them: write the "
                              "conversations as \"prompt\" and \"completion\" in the model's own "
                              "format, or import a model that has the marks",
                              problem, start.string()));
    // Options for special tokens replace the default, which ends a document.
    notes.push_back(
        fmt::format("warning: {}: each mark is several tokens, and no single token ends an answer; "
                    "for a new model train a tokenizer with `sortie-train data train-tokenizer "
                    "--type bpe --special-token '<|endoftext|>' --special-token '{}' "
                    "--special-token '{}'`",
                    problem, kChatBegin, kChatEnd));
  }
  if (const auto found = find_template(run, start); found && !is_chatml(found->text))
    notes.push_back(
        fmt::format("warning: conversations are trained on as ChatML, but the chat "
                    "template in {} is another format; exports of this run have the "
                    "template of ChatML",
                    found->place));
  return notes;
}

}  // namespace sortie::trainer
