// `sortie explain CODE`: explains an exit code, a signal or a failure class. The texts are in
// common/base/exit_code.h.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/exit_code.h"
#include "common/base/process_status.h"
#include "common/config/text.h"
#include "launcher/cli/verb.h"
#include "launcher/recovery/failure_class.h"

namespace sortie::launcher {
namespace {

constexpr const char* kExplainFooter = R"(Examples:
  sortie explain 137          what an exit code means and what to do
  sortie explain host_key     the same for the class in an error message: "h07: host_key: ..."
  sortie explain SIGSEGV      the same for a signal
  sortie explain hang         a failure class, and whether a run restarts after it
  sortie explain              all of them
)";

constexpr const char* kOwnCode =
    "A rank's own code means what its program says; a run exits with that of the first rank that "
    "failed. As a code of Sortie and of sortie-train:";

struct Answer {
  std::string what;         // "exit code 137"
  std::optional<int> code;  // empty for a failure class without an exit code
  ExplainedCode text;
  bool may_be_own = false;  // a program may use this code for something else
};

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc() || end != text.end()) return std::nullopt;
  return value;
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

/// "KILL", "SIGKILL" or "sigkill".
std::optional<int> signal_number(const std::string& word) {
  std::string name = upper(word);
  if (!name.starts_with("SIG")) name = "SIG" + name;
  for (int signal = 1; signal <= 64; ++signal)
    if (signal_name(signal) == name) return signal;
  return std::nullopt;
}

/// Returns nullptr if `word` is no failure class of [recovery].
const FailureClassText* failure_text(const std::string& word) {
  const auto texts = failure_class_texts();
  const auto found = std::ranges::find_if(texts, [&word](const FailureClassText& text) {
    return failure_class_name(text.failure) == word;
  });
  return found == texts.end() ? nullptr : &*found;
}

Result<Answer> explain(const std::string& word) {
  if (const auto code = number(word)) {
    if (*code < 0 || *code > 255)
      return fail(ErrorCode::usage, fmt::format("sortie: {}: exit codes are 0 to 255", word));
    ExplainedCode text = explain_exit_code(*code);
    const bool may_be_own = *code > 0 && *code < kFirstOfShells && text.name != "own";
    return Answer{fmt::format("exit code {}", *code), *code, std::move(text), may_be_own};
  }
  std::vector<std::string_view> names;
  for (const ErrorClass& entry : error_classes()) {
    const std::string_view name = error_code_name(entry.code);
    if (name == word)
      return Answer{fmt::format("{} (exit code {})", word, entry.exit_code),
                    entry.exit_code,
                    {word, std::string(entry.meaning), std::string(entry.advice)}};
    names.push_back(name);
  }
  if (const FailureClassText* text = failure_text(word)) {
    // Some classes have an exit code of the same name.
    const auto codes = exit_codes();
    const auto own = std::ranges::find(codes, word, &ExitCode::name);
    const bool has_code = own != codes.end();
    return Answer{fmt::format("failures of class {} ([recovery]){}", word,
                              has_code ? fmt::format(", exit code {}", own->code) : ""),
                  has_code ? std::optional(own->code) : std::nullopt,
                  {word, std::string(text->meaning), std::string(text->advice)}};
  }
  for (const ExitCode& entry : exit_codes()) {
    if (entry.name == word)
      return Answer{fmt::format("exit code {}", entry.code), entry.code,
                    explain_exit_code(entry.code)};
    names.push_back(entry.name);
  }
  if (const auto signal = signal_number(word))
    return Answer{fmt::format("exit code {}", 128 + *signal), 128 + *signal,
                  explain_exit_code(128 + *signal)};
  for (const std::string_view name : kFailureClassNames) names.push_back(name);
  const std::string_view near = config::nearest(word, names);
  return fail(
      ErrorCode::usage,
      fmt::format(
          "sortie: {}: no exit code, signal or failure class; {}", config::shorten(word),
          near.empty() ? "`sortie explain` lists them" : fmt::format("did you mean `{}`?", near)));
}

std::string text_of(const Answer& answer) {
  const bool named = answer.what.contains(answer.text.name);  // host_key (exit code 4)
  return fmt::format("{}{}\n{}  {}\n  {}\n", answer.what, named ? "" : ": " + answer.text.name,
                     answer.may_be_own ? fmt::format("  {}\n", kOwnCode) : "", answer.text.meaning,
                     answer.text.advice);
}

nlohmann::ordered_json json_of(const Answer& answer) {
  return {{"schema", "sortie/explain/1"},
          {"code", answer.code ? nlohmann::ordered_json(*answer.code) : nullptr},
          {"name", answer.text.name},
          {"meaning", answer.text.meaning},
          {"advice", answer.text.advice}};
}

std::string list_text() {
  std::string out = "exit codes\n";
  for (const ExitCode& entry : exit_codes())
    out += fmt::format("  {:<7}  {:<12}  {}\n", entry.code, entry.name, entry.meaning);
  out += fmt::format("  {:<7}  {:<12}  {}\n\n", "128 + N", "SIG...", "Ended by signal N");
  out += fmt::format("exit codes of `sortie check`, its verdict\n  {}\n\n", kCheckExitCodes);
  out += "failure classes, with their exit codes\n";
  for (const ErrorClass& entry : error_classes())
    out += fmt::format("  {:<12}  {:>3}  {}\n", error_code_name(entry.code), entry.exit_code,
                       entry.meaning);
  out += "\nfailure classes of a run, for [recovery]\n";
  for (const FailureClassText& entry : failure_class_texts())
    out += fmt::format("  {:<12}  {}\n", failure_class_name(entry.failure), entry.meaning);
  return out;
}

std::string list_json() {
  nlohmann::ordered_json codes = nlohmann::ordered_json::array();
  for (const ExitCode& entry : exit_codes())
    codes.push_back({{"code", entry.code},
                     {"name", entry.name},
                     {"meaning", entry.meaning},
                     {"advice", entry.advice}});
  nlohmann::ordered_json classes = nlohmann::ordered_json::array();
  for (const ErrorClass& entry : error_classes())
    classes.push_back({{"class", error_code_name(entry.code)},
                       {"code", entry.exit_code},
                       {"meaning", entry.meaning},
                       {"advice", entry.advice}});
  nlohmann::ordered_json failures = nlohmann::ordered_json::array();
  for (const FailureClassText& entry : failure_class_texts())
    failures.push_back({{"class", failure_class_name(entry.failure)},
                        {"meaning", entry.meaning},
                        {"advice", entry.advice}});
  const nlohmann::ordered_json out = {{"schema", "sortie/explain/1"},
                                      {"exit_codes", codes},
                                      {"classes", classes},
                                      {"failures", failures}};
  return out.dump(2) + "\n";
}

struct ExplainOptions {
  std::string word;
  bool json = false, markdown = false;
};

int run(const ExplainOptions& options) {
  if (options.markdown) return print_text(exit_codes_markdown());
  if (options.word.empty()) return print_text(options.json ? list_json() : list_text());
  const auto answer = explain(options.word);
  if (!answer) return print_error(answer.error());
  return print_text(options.json ? json_of(*answer).dump(2) + "\n" : text_of(*answer));
}

}  // namespace

void add_explain_verb(CLI::App& root, std::vector<Verb>& verbs) {
  const auto options = std::make_shared<ExplainOptions>();
  CLI::App* explain =
      root.add_subcommand("explain", "Explain an exit code, signal or failure class");
  explain->footer(kExplainFooter);
  explain->add_option("code", options->word, "Exit code, signal or failure class");
  explain->add_flag("--json", options->json, "As JSON (schema sortie/explain/1)");
  explain->add_flag("--markdown", options->markdown, "docs/exit_codes.md");
  verbs.push_back({explain, [options] { return run(*options); }});
}

}  // namespace sortie::launcher
