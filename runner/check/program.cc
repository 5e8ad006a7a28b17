#include <elf.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/fd.h"
#include "runner/check/child.h"
#include "runner/check/parts.h"
#include "runner/job/environment.h"
#include "runner/streams/json_text.h"

namespace sortie::runner::check {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kLoaderLimit{5000};
constexpr std::size_t kMaxMissing = 16;
constexpr std::size_t kHead = 4096;

std::string path_variable(const Json& request) {
  if (std::string given = text_in(request, "path"); !given.empty()) return given;
  const char* own = std::getenv("PATH");
  return own ? own : "/usr/local/bin:/usr/bin:/bin";
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
                    const ProcessDefaults& defaults, Json& part) {
  const auto output = run_child(loader, {loader, "--list", program}, {}, kLoaderLimit, defaults);
  if (!output) {
    part["error"] = output.error().message;
    return;
  }
  Json missing = Json::array();
  std::string_view text = output->text;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
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
  part["interpreter"] = interpreter;
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

}  // namespace

Json program_part(const Json& request, const ProcessDefaults& defaults) {
  const std::string name = text_in(request, "name");
  std::string folder = text_in(request, "work_dir");
  Json part = {{"part", "program"}, {"name", name}};
  struct stat info {};
  const bool work_dir = ::stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  part["work_dir"] = work_dir;
  if (const char* home = std::getenv("HOME"); !work_dir) folder = home ? home : "/";
  const std::string path = path_variable(request);
  int error = 0;
  const std::string found = find_program(name, folder, path, error);
  if (found.empty()) {
    part["error"] = std::strerror(error);
    return part;
  }
  part["found"] = found;
  const Fd file(::open(found.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return part;  // executable but not readable: the kernel can run it
  const std::string head = read_part(file.get(), 0, kHead);
  if (head.starts_with("#!")) {
    look_at_script(head, path, part);
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
      list_libraries(loader, found, defaults, part);
  }
  return part;
}

}  // namespace sortie::runner::check
