// `man [VERB]`: manual pages in roff, from the tree of verbs and the table of exit codes.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "common/base/atomic_file.h"
#include "common/base/exit_code.h"
#include "common/cli/common_verbs.h"
#include "common/cli/print.h"
#include "common/cli/tree.h"

namespace sortie::cli {
namespace {

/// Escapes text so that roff prints it as it is: no escapes, no requests at the start of a line,
/// plain hyphens.
std::string roff(std::string_view text) {
  std::string out;
  bool start = true;
  for (const char c : text) {
    if (start && (c == '.' || c == '\'')) out += "\\&";
    start = c == '\n';
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '~':
        out += "\\(ti";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '\'':
        out += "\\(aq";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string options_text(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : positionals(app))
    out += fmt::format(".TP\n\\fI{}\\fR\n{}\n", roff(option->get_name(true)),
                       roff(description_of(*option)));
  for (const CLI::Option* option : named_options(app)) {
    if (option->get_positional()) continue;  // described above
    std::string names;
    for (const std::string& name : spellings(*option))
      names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", roff(name));
    if (const std::string value = value_name(*option); !value.empty())
      names += fmt::format(" \\fI{}\\fR", roff(value));
    out += fmt::format(".TP\n{}\n{}\n", names, roff(option->get_description()));
  }
  return out;
}

std::string examples_text(const CLI::App& app) {
  const std::string examples = footer_of(app).examples;
  return examples.empty() ? "" : fmt::format(".nf\n{}.fi\n", roff(examples));
}

std::string synopsis(const CLI::App& app, const Verbs& verbs) {
  const auto verb = std::ranges::find(verbs, &app, &Verb::app);
  return fmt::format("\\fB{}\\fR {}\n", roff(full_name(app)),
                     roff(usage_of(app, verb != verbs.end() && verb->takes_program)));
}

/// Section about a verb below another verb: "sortie config show" in the page of `sortie config`.
std::string section_of(const CLI::App& app, const Verbs& verbs) {
  std::string out =
      fmt::format(".SS {}\n{}.PP\n{}.\n{}", roff(full_name(app)), synopsis(app, verbs),
                  roff(app.get_description()), options_text(app));
  for (const CLI::App* sub : subverbs(app)) out += section_of(*sub, verbs);
  return out;
}

std::string exit_status() {
  std::string out = ".SH EXIT STATUS\n";
  for (const ExitCode& entry : exit_codes())
    out += fmt::format(".TP\n{}\n{}.\n", entry.code, roff(entry.meaning));
  return out + ".TP\n128 + N\nEnded by signal N.\n";
}

const CLI::App& root_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app : root_of(*app.get_parent());
}

std::string page_name(const CLI::App& app) {
  std::string name = full_name(app);
  std::ranges::replace(name, ' ', '-');
  return name;
}

std::string page(const CLI::App& app, const Verbs& verbs, std::string_view environment) {
  const bool is_root = app.get_parent() == nullptr;
  std::string upper = page_name(app);
  std::ranges::transform(upper, upper.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string out = fmt::format(".TH {} 1 \"\" \"{}\" \"Sortie\"\n.nh\n.ad l\n", roff(upper),
                                roff(root_of(app).version()));
  out += fmt::format(".SH NAME\n{} \\- {}\n", roff(page_name(app)), roff(app.get_description()));
  out += ".SH SYNOPSIS\n" + synopsis(app, verbs);
  if (const std::string examples = examples_text(app); !examples.empty())
    out += ".SH EXAMPLES\n" + examples;
  if (const std::string rest = footer_of(app).rest; !rest.empty())
    out += ".SH DESCRIPTION\n" + roff(rest);
  out += ".SH OPTIONS\n" + options_text(app);
  const auto subs = subverbs(app);
  if (is_root) {
    out += ".SH VERBS\n";
    for (const CLI::App* sub : subs)
      out += fmt::format(".TP\n\\fB{}\\fR(1)\n{}.\n", roff(page_name(*sub)),
                         roff(sub->get_description()));
    return out + exit_status() + std::string(environment);
  }
  if (!subs.empty()) out += ".SH VERBS\n";
  for (const CLI::App* sub : subs) out += section_of(*sub, verbs);
  return out + fmt::format(
                   ".SH EXIT STATUS\nSee \\fB{0}\\fR(1), or \\fBsortie explain\\fR.\n"
                   ".SH SEE ALSO\n\\fB{0}\\fR(1)\n",
                   roff(root_of(app).get_name()));
}

struct ManOptions {
  std::string verb, folder, environment;
};

Result<> write_pages(const CLI::App& root, const Verbs& verbs, const ManOptions& options) {
  const std::filesystem::path folder = options.folder;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(ErrorCode::io, fmt::format("{}: {}", folder.string(), error.message()));
  std::vector<const CLI::App*> pages = subverbs(root);
  pages.push_back(&root);
  for (const CLI::App* app : pages)
    SORTIE_TRY(write_file_atomic(folder / (page_name(*app) + ".1"),
                                 page(*app, verbs, options.environment)));
  return {};
}

int print_man(const CLI::App& root, const Verbs& verbs, const ManOptions& options) {
  if (!options.folder.empty()) {
    const auto written = write_pages(root, verbs, options);
    return written ? 0 : print_error(written.error());
  }
  const std::string& name = root.get_name();
  if (options.verb.empty()) return print_text(name, page(root, verbs, options.environment));
  if (const CLI::App* verb = subverb(root, options.verb))
    return print_text(name, page(*verb, verbs, options.environment));
  return print_error(
      {ErrorCode::usage, no_such_verb(root, options.verb, did_you_mean(root, {options.verb}))});
}

}  // namespace

void add_man_verb(CLI::App& root, Verbs& verbs, std::string_view environment) {
  const auto options = std::make_shared<ManOptions>();
  options->environment = environment;
  CLI::App* man = root.add_subcommand("man", "The manual page of a verb, in roff");
  const std::string name = root.get_name();
  const std::string example = subverbs(root).empty() ? "" : subverbs(root).front()->get_name();
  man->footer(
      fmt::format("Examples:\n  {0} man {1} | man -l -            read the page of a verb\n"
                  "  {0} man --output-dir man/man1     write all pages (cmake --install does "
                  "it)\n",
                  name, example));
  man->add_option("verb", options->verb,
                  fmt::format("Verb; none = the page of {} itself", root.get_name()));
  man->add_option("--output-dir", options->folder, "Write all pages into this folder");
  verbs.push_back({man, [options, &root, &verbs] { return print_man(root, verbs, *options); }});
}

}  // namespace sortie::cli
