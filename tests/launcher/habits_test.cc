// Conventions of command lines: help, manual pages, colors, explanations of exit codes. All of it
// is generated from the tree of verbs, so each case covers every verb.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/exit_code.h"
#include "launcher/recovery/failure_class.h"
#include "tests/launcher/command_line.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::after;
using test::all_verbs;
using test::has;
using test::holds;
using test::lines_of;
using test::shell;
using test::sortie;
using testing::Finished;

TEST_CASE("every verb's help begins with examples, and has the flags that all have") {
  const auto verbs = all_verbs();
  CHECK(verbs.size() >= 10);
  for (std::vector<std::string> verb : verbs) {
    CAPTURE(verb);
    verb.push_back("--help");
    const Finished help = sortie(verb);
    CHECK(help.code == 0);
    CHECK_MESSAGE(help.output.starts_with("Examples:\n  "), help.output);
    for (const char* part : {"\nUsage: sortie ", "--quiet", "--verbose", "--no-color"})
      CHECK_MESSAGE(has(help.output, part), part);
  }
  const Finished root = sortie({"--help"});
  CHECK(root.output.starts_with("Examples:\n  sortie "));
  CHECK_FALSE(has(root.output, "__complete"));
  for (const char* flag : {"-q", "--quiet", "-v", "--verbose", "--no-color"})
    CHECK(sortie({flag, "explain", "1"}).code + sortie({"explain", flag, "1"}).code == 0);
}

TEST_CASE("every manual page renders without a warning") {
  const test::ScopedTempDir dir;
  REQUIRE(sortie({"man", "--output-dir", dir.path()}).code == 0);
  std::set<std::string> expected = {"sortie.1"};
  for (const auto& verb : all_verbs())
    if (verb.size() == 1) expected.insert("sortie-" + verb[0] + ".1");
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(dir.path()))
    found.insert(entry.path().filename());
  CHECK(found == expected);
  for (const std::string& name : found) {
    CAPTURE(name);
    const Finished warnings = testing::run({"groff", "-man", "-Tutf8", "-ww", "-z", dir.str(name)});
    CHECK(warnings.code == 0);
    CHECK(warnings.output == "");
    const Finished man = testing::run({"/usr/bin/env", "MANWIDTH=100", "LC_ALL=C.UTF-8", "man",
                                       "--warnings", "-l", dir.str(name)});
    CHECK(man.code == 0);
    CHECK(has(man.output, "SYNOPSIS"));
    CHECK_FALSE(has(man.output, "warning:"));
  }
  const std::string run = testing::run({"/usr/bin/env", "MANWIDTH=100", "LC_ALL=C.UTF-8", "man",
                                        "-l", dir.str("sortie-run.1")})
                              .output;
  // Quotes and hyphens are plain ASCII, so that commands copied from the page work.
  CHECK(has(run, "sortie run --hosts 'gpu[01-04]' --slots 8 -- ./my_mpi"));
  CHECK(has(run, "[-- PROGRAM ARGS...]"));
  CHECK(sortie({"man", "run"}).output == test::read_text(dir / "sortie-run.1"));
  CHECK(has(sortie({"man", "rnu"}).output, "did you mean `run`?"));
}

TEST_CASE("explain has words for every code, signal and class, and names what is near") {
  for (int code = 0; code <= 255; ++code) {
    const ExplainedCode text = explain_exit_code(code);
    CHECK_FALSE(text.meaning.empty());
    CHECK_FALSE(text.advice.empty());
  }
  for (const ErrorClass& entry : error_classes()) {
    const Finished answer = sortie({"explain", std::string(error_code_name(entry.code)), "--json"});
    const Json parsed = Json::parse(answer.output);
    CHECK(parsed["schema"] == "sortie/explain/1");
    CHECK(parsed["code"] == exit_code_for(entry.code));
  }
  for (const std::string_view name : kFailureClassNames) {
    const Json parsed = Json::parse(sortie({"explain", std::string(name), "--json"}).output);
    CHECK(parsed["name"] == name);
    if (!parsed["code"].is_null()) CHECK(explain_exit_code(parsed["code"]).name == name);
    CHECK(has(parsed["meaning"].get<std::string>(), " "));
  }
  CHECK(has(sortie({"explain", "hardwear"}).output, "did you mean `hardware`?"));
  CHECK(has(sortie({"explain", "137"}).output, "SIGKILL"));
  CHECK(sortie({"explain", "host_key"}).output.starts_with("host_key (exit code 4)\n"));
  CHECK(sortie({"explain", "137"}).output == sortie({"explain", "kill"}).output);
  CHECK(sortie({"explain", "137"}).output == sortie({"explain", "SIGKILL"}).output);
  CHECK(has(sortie({"explain", "host-key"}).output, "did you mean `host_key`?"));
  for (const char* code : {"1", "3", "9"})
    CHECK(lines_of(sortie({"explain", code}).output)[1].starts_with(
        "  A rank's own code means what its program says"));
  for (const char* word : {"0", "7x", "99", "127", "137", "preflight"})
    CHECK_FALSE(has(sortie({"explain", word}).output, "A rank's own code means"));
  CHECK(sortie({"explain", "256"}).code == 2);
  CHECK(Json::parse(sortie({"explain", "--json"}).output)["exit_codes"].size() ==
        exit_codes().size());
}

TEST_CASE("every --json answer says its schema in its help") {
  for (std::vector<std::string> verb : all_verbs()) {
    verb.push_back("--help");
    const std::string help = sortie(verb).output;
    CAPTURE(help);
    const std::size_t at = help.find("\n  --json ");
    if (at == help.npos) continue;
    // The description may continue on the following lines.
    CHECK(has(help.substr(at, 400), "schema sortie/"));
  }
}

TEST_CASE("mistyped words of a fixed set are answered with what is near") {
  const Finished fsh = sortie({"completion", "fsh"});
  CHECK(fsh.code == 2);
  CHECK(has(fsh.output, "did you mean `fish`?"));
  CHECK(has(sortie({"run", "--quite", "x"}).output, "did you mean `--quiet`?"));
  CHECK(has(sortie({"plan", "--set", "runner.mip=on", "--", "x"}).output,
            "did you mean runner.mpi?"));
  CHECK(has(sortie({"plan", "--set", "runner.mpi=onn", "--", "x"}).output, "did you mean \"on\"?"));
}

TEST_CASE("colours: on terminals, unless said otherwise; pipes only when forced") {
  const test::ScopedTempDir dir;
  const std::string run = std::string(SORTIE_BINARY) +
                          " run --set runner.mpi=off --set logger.log_dir=" + dir.path().string();
  const std::string job = " -- sh -c \"echo out; exit 3\"";
  const auto piped = [&](const std::string& variables, const std::string& flags = "") {
    return shell("env -u NO_COLOR -u CLICOLOR_FORCE " + variables + " " + run + flags + job +
                 " 2>&1")
        .output;
  };
  const auto terminal = [&](const std::string& variables, const std::string& flags = "") {
    return testing::run({"script", "-qec",
                         "env -u NO_COLOR -u CLICOLOR_FORCE TERM=xterm " + variables + " " + run +
                             flags + job,
                         "/dev/null"})
        .output;
  };
  const std::string kEscape = "\x1b[";
  CHECK_FALSE(has(piped(""), kEscape));
  CHECK(has(piped("CLICOLOR_FORCE=1"), "\x1b[2m[0 localhost]"));
  CHECK_FALSE(has(piped("CLICOLOR_FORCE=0"), kEscape));
  CHECK_FALSE(has(piped("CLICOLOR_FORCE=1 NO_COLOR=1"), kEscape));
  CHECK_FALSE(has(piped("CLICOLOR_FORCE=1", " --no-color"), kEscape));
  CHECK(has(terminal(""), "\x1b[2m[0 localhost]"));
  CHECK(has(terminal("NO_COLOR="), "\x1b[2m[0 localhost]"));
  CHECK_FALSE(has(terminal("NO_COLOR=1"), "\x1b[2m"));
  CHECK_FALSE(has(terminal("", " --no-color"), "\x1b[2m"));
}

TEST_CASE("after a run: what may come next, of verbs that exist; with --quiet nothing but errors") {
  const test::ScopedTempDir dir;
  const auto run = [&](const std::string& flags, const std::string& script) {
    return sortie({"run", flags, "--set", "runner.mpi=off", "--set",
                   "logger.log_dir=" + dir.path().string(), "--", "sh", "-c", script})
        .output;
  };
  const std::string failed = run("--no-color", "echo words; exit 7");
  CHECK(has(failed, "sortie report 2"));
  CHECK_FALSE(has(failed, "sortie explain"));  // what 7 means only the program knows
  CHECK(has(run("--no-color", "exit 137"), "sortie explain 137\n"));
  const std::string absent = sortie({"run", "--no-color", "--set", "runner.mpi=off", "--set",
                                     "logger.log_dir=" + dir.path().string(), "--", "/absent"})
                                 .output;
  CHECK_MESSAGE(has(absent, "sortie explain 3\n"), absent);
  std::vector<std::string> top = after({""});
  bool next = false;
  for (const std::string& line : lines_of(failed)) {
    if (next) {
      std::istringstream words(line);
      std::string program, verb;
      words >> program >> verb;
      CHECK(program == "sortie");  // which PATH finds: the command can be copied and run
      CHECK(holds(top, verb));
    }
    next = next || line == "next:";
  }
  CHECK(next);
  const std::string quiet = run("--quiet", "echo words; exit 7");
  CHECK(quiet.starts_with("[0 localhost] words\nrank 0 on localhost"));
  CHECK(has(quiet, "failed with exit code 7"));
  CHECK(lines_of(quiet).size() == 2);
  CHECK(run("-q", "echo words") == "[0 localhost] words\n");
}

}  // namespace
}  // namespace sortie::launcher
