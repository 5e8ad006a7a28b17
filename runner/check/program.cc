#include <elf.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/fd.h"
#include "common/base/json_member.h"
#include "common/base/split.h"
#include "runner/check/child.h"
#include "runner/check/parts.h"
#include "runner/job/environment.h"

namespace sortie::runner::check {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kLoaderLimit{5000};
constexpr std::size_t kMaxMissing = 16;
constexpr std::size_t kHead = 4096;

/// The environment that a rank would have, apart from what only a run knows: what it inherits from
/// the runner, and the request's lines.
std::vector<std::string> environment_in(const Json& request) {
  std::map<std::string, std::string> lines;  // by name
  const auto put = [&lines](const std::string& line) {
    if (const std::size_t equals = line.find('='); equals != line.npos && equals > 0)
      lines[line.substr(0, equals)] = line;
  };
  for (const std::string& line : base_environment(environ)) put(line);
  if (const auto given = request.find("env"); given != request.end() && given->is_array())
    for (const Json& line : *given)
      if (line.is_string()) put(line.get<std::string>());
  std::vector<std::string> environment;
  for (auto& [name, line] : lines) environment.push_back(std::move(line));
  return environment;
}

/// Path that execvp would use from the rank's work folder; else "" and the error of the last
/// attempt.
std::string find_program(const std::string& name, const std::string& folder,
                         const std::string& path, int& error) {
  error = ENOENT;
  for (std::string candidate : program_candidates(name, path)) {
    if (!candidate.starts_with('/')) candidate = folder + '/' + candidate;
    struct stat info {};
    if (::stat(candidate.c_str(), &info) != 0) {
      if (errno != ENOENT && errno != ENOTDIR) error = errno;
      continue;
    }
    if (S_ISREG(info.st_mode) && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    error = S_ISREG(info.st_mode) ? EACCES : EISDIR;
  }
  return "";
}

std::string read_part(int fd, std::uint64_t offset, std::size_t size) {
  std::string bytes(size, '\0');
  const ssize_t count = ::pread(fd, bytes.data(), size, static_cast<off_t>(offset));
  bytes.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return bytes;
}

std::optional<Elf64_Ehdr> elf_header(std::string_view head) {
  Elf64_Ehdr header;
  if (head.size() < sizeof header || !head.starts_with(ELFMAG)) return std::nullopt;
  std::memcpy(&header, head.data(), sizeof header);
  return header;
}

/// The program's PT_INTERP; empty for a static program.
std::string loader_of(int fd, const Elf64_Ehdr& header) {
  constexpr unsigned kMaxSegments = 128;
  for (unsigned i = 0; i < header.e_phnum && i < kMaxSegments; ++i) {
    Elf64_Phdr segment;
    const std::string bytes =
        read_part(fd, header.e_phoff + std::uint64_t{i} * header.e_phentsize, sizeof segment);
    if (bytes.size() < sizeof segment) break;
    std::memcpy(&segment, bytes.data(), sizeof segment);
    if (segment.p_type == PT_INTERP && segment.p_filesz < kHead)
      return read_part(fd, segment.p_offset, segment.p_filesz).c_str();
  }
  return "";
}

/// Asks the dynamic loader for the libraries that it would load. The program itself is not run.
void list_libraries(const std::string& loader, const std::string& program,
                    const std::vector<std::string>& environment, const ProcessDefaults& defaults,
                    Json& part) {
  const auto output =
      run_child(loader, {loader, "--list", program}, &environment, kLoaderLimit, defaults);
  if (!output) {
    part["error"] = output.error().message;
    return;
  }
  Json missing = Json::array();
  std::string_view text = output->text;
  while (!text.empty()) {
    std::string_view line = take_line(text);
    while (line.starts_with('\t') || line.starts_with(' ')) line.remove_prefix(1);
    const std::size_t arrow = line.find(" => ");
    if (line.find("not found") != line.npos && missing.size() < kMaxMissing)
      missing.push_back(std::string(arrow == line.npos ? line : line.substr(0, arrow)));
    if (line.starts_with("libmpi.so") && arrow != line.npos && line.find(" => /") != line.npos)
      part["libmpi"] = line.substr(arrow + 4, line.rfind(" (") - arrow - 4);
  }
  part["missing"] = missing;
  if (missing.empty() && !output->status.success())
    part["error"] = fmt::format("{}: {}", output->status.to_string(),
                                output->text.substr(0, output->text.find('\n')));
}

/// Checks "#!/usr/bin/env python3": both the interpreter and env's argument must exist.
void look_at_script(std::string_view head, const std::string& path, Json& part) {
  std::string_view line = head.substr(2, head.find('\n') - 2);
  const auto word = [&line] {
    while (line.starts_with(' ')) line.remove_prefix(1);
    const std::string_view found = line.substr(0, line.find(' '));
    line.remove_prefix(found.size());
    return std::string(found);
  };
  const std::string interpreter = word();
  if (::access(interpreter.c_str(), X_OK) != 0) {
    part["error"] = fmt::format("its interpreter {}: {}", interpreter, std::strerror(errno));
    return;
  }
  if (!interpreter.ends_with("/env")) return;
  const std::string wanted = word();
  int error = 0;
  if (!wanted.empty() && !wanted.starts_with('-') && find_program(wanted, "/", path, error).empty())
    part["error"] = fmt::format("its interpreter {}: {}", wanted, std::strerror(error));
}

/// The program of a request {"name", "work_dir", "env"} as a rank would find it.
struct Located {
  std::string found;  // path; empty if there is none
  std::string why;    // then the reason
  bool work_dir = false;
  std::vector<std::string> environment;
};

Located locate(const Json& request) {
  Located located;
  std::string folder = json_member::text(request, "work_dir");
  struct stat info {};
  located.work_dir = ::stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  if (const char* home = std::getenv("HOME"); !located.work_dir) folder = home ? home : "/";
  located.environment = environment_in(request);
  int error = 0;
  located.found = find_program(json_member::text(request, "name"), folder,
                               std::string(env_value(located.environment, "PATH")), error);
  if (located.found.empty()) located.why = std::strerror(error);
  return located;
}

}  // namespace

Json program_part(const Json& request, const ProcessDefaults& defaults) {
  const Located located = locate(request);
  Json part = {{"part", "program"},
               {"name", json_member::text(request, "name")},
               {"work_dir", located.work_dir}};
  if (located.found.empty()) {
    part["error"] = located.why;
    return part;
  }
  const std::string& found = located.found;
  part["found"] = found;
  const Fd file(::open(found.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return part;  // executable but not readable: the kernel can run it
  const std::string head = read_part(file.get(), 0, kHead);
  if (head.starts_with("#!")) {
    look_at_script(head, std::string(env_value(located.environment, "PATH")), part);
    return part;
  }
  const auto header = elf_header(head);
  const Fd self(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const auto own = elf_header(read_part(self.get(), 0, sizeof(Elf64_Ehdr)));
  if (!header) {
    part["error"] = "neither a program for this machine nor a script with #!";
  } else if (own && header->e_machine != own->e_machine) {
    part["error"] = "it was built for another kind of machine";
  } else if (const std::string loader = loader_of(file.get(), *header); !loader.empty()) {
    if (::access(loader.c_str(), X_OK) != 0)
      part["error"] = fmt::format("its loader {}: {}", loader, std::strerror(errno));
    else
      list_libraries(loader, found, located.environment, defaults, part);
  }
  return part;
}

Json trainer_part(const Json& request, std::chrono::milliseconds limit,
                  const ProcessDefaults& defaults) {
  Json part = {{"part", "trainer"}};
  const auto program = request.find("program");
  const Located located =
      locate(program != request.end() && program->is_object() ? *program : Json::object());
  if (located.found.empty()) {
    part["error"] = located.why;
    return part;
  }
  std::vector<std::string> argv = {located.found, "devices", "--json"};
  if (request.value("cpu", Json()) == Json(true)) argv.emplace_back("--cpu");
  const auto output = run_child(located.found, argv, &located.environment, limit, defaults);
  if (!output) {
    part["error"] = output.error().message;
    return part;
  }
  Json answer = json_object_in(output->text);
  if (output->status.success() && !answer.empty())
    part["answer"] = std::move(answer);
  else
    part["error"] = fmt::format("`{} devices --json`: {}: {}", located.found,
                                output->status.to_string(), beginning_of(output->text));
  return part;
}

}  // namespace sortie::runner::check
