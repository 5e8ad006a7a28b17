#include "common/container/engine_command.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "common/base/fnv1a.h"
#include "common/base/shell_text.h"
#include "common/base/split.h"

namespace sortie::container {
namespace {

constexpr std::array<std::pair<Engine, std::string_view>, 4> kEngines = {{
    {Engine::docker, "docker"},
    {Engine::podman, "podman"},
    {Engine::nerdctl, "nerdctl"},
    {Engine::ctr, "ctr"},
}};

/// containerd allows names of at most 76 bytes.
constexpr std::size_t kMaxRunIdInName = 40;

std::string short_run_id(const std::string& run_id) {
  if (run_id.size() <= kMaxRunIdInName) return run_id;
  return fmt::format("{}-{:08x}", run_id.substr(0, kMaxRunIdInName - 9), fnv1a_32(run_id));
}

Argv with_names(Argv argv, const std::vector<std::string>& names) {
  argv.insert(argv.end(), names.begin(), names.end());
  return argv;
}

}  // namespace

std::optional<Engine> engine_named(std::string_view name) {
  for (const auto& [engine, its_name] : kEngines)
    if (its_name == name) return engine;
  return std::nullopt;
}

std::string_view engine_name(Engine engine) {
  return std::find_if(kEngines.begin(), kEngines.end(),
                      [engine](const auto& entry) { return entry.first == engine; })
      ->second;
}

std::vector<Engine> clients_of(std::string_view engine) {
  if (engine == "containerd") return {Engine::nerdctl, Engine::ctr};
  if (const auto named = engine_named(engine)) return {*named};
  return {};
}

std::string container_name(const Box& box) {
  std::string name =
      fmt::format("sortie-{}-a{}-n{}", short_run_id(box.run_id), box.attempt, box.node_rank);
  if (box.rank) name += fmt::format("-r{}", *box.rank);
  return name;
}

std::string full_image_name(const std::string& image) {
  const std::size_t slash = image.find('/');
  const std::string first = image.substr(0, slash);
  const bool registry =
      slash != image.npos && (first.find_first_of(".:") != first.npos || first == "localhost");
  std::string name = registry              ? image
                     : slash == image.npos ? "docker.io/library/" + image
                                           : "docker.io/" + image;
  const std::size_t last = name.rfind('/');
  if (name.find_first_of(":@", last) == name.npos) name += ":latest";
  return name;
}

std::vector<std::string> containerd_names(const std::string& image) {
  std::vector<std::string> names = {full_image_name(image)};
  if (names.front() != image) names.push_back(image);
  return names;
}

std::optional<ListedImage> listed_image(const std::string& image, std::string_view table) {
  for (const std::string& name : containerd_names(image))
    for (std::string_view rest = table; !rest.empty();) {
      const std::string_view line = take_line(rest);
      if (line.substr(0, line.find_first_of(" \t")) != name) continue;
      const std::size_t at = line.find("sha256:", name.size());
      if (at == line.npos) continue;
      return ListedImage{name,
                         std::string(line.substr(at, line.substr(at).find_first_of(" \t\r")))};
    }
  return std::nullopt;
}

Argv info_command(Engine engine, const std::string& program) {
  switch (engine) {
    case Engine::docker:
    case Engine::nerdctl:
      return {program, "info", "--format", "{{json .}}"};
    case Engine::podman:
      return {program, "info", "--format", "json"};
    case Engine::ctr:
      break;
  }
  return {program, "version"};
}

Argv inspect_image_command(Engine engine, const std::string& program, const std::string& image) {
  if (engine == Engine::ctr) {
    Argv argv = {program, "images", "list"};
    for (const std::string& name : containerd_names(image)) argv.push_back("name==" + name);
    return argv;
  }
  return {program, "image", "inspect", "--format", "{{json .}}", image};
}

Argv pull_command(Engine engine, const std::string& program, const std::string& image) {
  if (engine == Engine::ctr) return {program, "images", "pull", full_image_name(image)};
  return {program, "pull", image};
}

std::vector<Argv> save_commands(Engine engine, const std::string& program,
                                const std::string& image) {
  if (engine != Engine::ctr) return {{program, "save", image}};
  std::vector<Argv> commands;
  for (const std::string& name : containerd_names(image))
    commands.push_back({program, "images", "export", "-", name});
  return commands;
}

Argv list_command(Engine engine, const std::string& program, std::string_view label,
                  std::string_view value) {
  if (engine == Engine::ctr)
    return {program, "containers", "list", "--quiet",
            value.empty() ? fmt::format("labels.\"{}\"", label)
                          : fmt::format("labels.\"{}\"==\"{}\"", label, value)};
  return {
      program,
      "ps",
      "--all",
      "--quiet",
      "--filter",
      value.empty() ? fmt::format("label={}", label) : fmt::format("label={}={}", label, value)};
}

Argv inspect_command(Engine engine, const std::string& program,
                     const std::vector<std::string>& names) {
  if (engine == Engine::ctr) return with_names({program, "containers", "info"}, names);
  return with_names({program, "container", "inspect"}, names);
}

Argv state_command(Engine engine, const std::string& program, const std::string& name) {
  if (engine == Engine::ctr) return {program, "tasks", "list"};
  return inspect_command(engine, program, {name});
}

bool has_ended(Engine engine, std::string_view name, const ProcessStatus& status,
               std::string_view output) {
  if (engine != Engine::ctr || !status.success()) return !status.success();
  while (!output.empty()) {
    const std::string_view line = take_line(output);
    if (line.substr(0, line.find(' ')) == name) return line.contains("STOPPED");
  }
  return true;
}

std::vector<Argv> remove_commands(Engine engine, const std::string& program,
                                  const std::vector<std::string>& names) {
  switch (engine) {
    case Engine::docker:
    case Engine::nerdctl:
      return {with_names({program, "rm", "--force", "--volumes"}, names)};
    case Engine::podman:
      return {with_names({program, "rm", "--force", "--volumes", "--time", "0"}, names)};
    case Engine::ctr:
      break;
  }
  std::vector<Argv> commands;
  for (const std::string& name : names)
    commands.push_back({program, "tasks", "delete", "--force", name});
  commands.push_back(with_names({program, "containers", "delete"}, names));
  return commands;
}

std::string shown(const Argv& argv) {
  return shell_text(argv);
}

}  // namespace sortie::container
