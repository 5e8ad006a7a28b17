#include "launcher/host/host_texts.h"

#include <algorithm>
#include <csignal>

#include "launcher/console/console.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kMaxWordBytes = 256, kMaxMessageBytes = 4096;
constexpr std::size_t kMaxStackText = 256u << 10;
constexpr std::size_t kMaxLastWords = 1000;
constexpr std::size_t kMaxAddresses = 1024;
constexpr std::size_t kMaxLeft = 32, kMaxLeftBytes = 2100;  // may end with a command

void limit(std::string& text, std::size_t bytes) {
  if (text.size() > bytes) text = text.substr(0, bytes) + "...";
}

/// Bounds a text that is shown to the user.
void limit_shown(std::string& text, std::size_t bytes) {
  limit(text, bytes);
  text = printable_lines(text);
}

void bound(wire::JobReady& ready) {
  for (std::string* text :
       {&ready.hostname, &ready.kernel, &ready.pmix, &ready.binding, &ready.machine_id})
    limit(*text, kMaxWordBytes);
  limit(ready.cgroup, kMaxMessageBytes);  // a path
  if (ready.addresses.size() > kMaxAddresses) ready.addresses.resize(kMaxAddresses);
  for (std::string& text : ready.addresses) limit(text, kMaxWordBytes);
  for (auto& [peer, address] : ready.routes) {
    limit(peer, kMaxWordBytes);
    limit(address, kMaxWordBytes);
  }
  for (std::string& text : ready.cpu_sets) limit(text, kMaxMessageBytes);
}

void bound(wire::Swept& swept) {
  if (swept.left.size() > kMaxLeft) swept.left.resize(kMaxLeft);
  for (std::string& text : swept.left) limit_shown(text, kMaxLeftBytes);
}

}  // namespace

void bound_texts(wire::Message& message) {
  if (auto* ready = std::get_if<wire::JobReady>(&message)) {
    bound(*ready);
  } else if (auto* error = std::get_if<wire::RunnerError>(&message)) {
    limit(error->code, kMaxWordBytes);
    limit_shown(error->message, kMaxMessageBytes);
  } else if (auto* progress = std::get_if<wire::ImageProgress>(&message)) {
    limit_shown(progress->text, kMaxWordBytes);
  } else if (auto* image = std::get_if<wire::ImageReady>(&message)) {
    for (std::string* text : {&image->image_id, &image->engine_version})
      limit(*text, kMaxWordBytes);
    limit(image->repo_digest, kMaxMessageBytes);
  } else if (auto* abort = std::get_if<wire::PmixAbort>(&message)) {
    limit(abort->message, kMaxMessageBytes);
  } else if (auto* notice = std::get_if<wire::PmixNotice>(&message)) {
    limit_shown(notice->text, kMaxMessageBytes);
  } else if (auto* swept = std::get_if<wire::Swept>(&message)) {
    bound(*swept);
  } else if (auto* held = std::get_if<wire::MemoryHeld>(&message)) {
    limit_shown(held->folder, kMaxMessageBytes);
  } else if (auto* wanted = std::get_if<wire::FilesWanted>(&message)) {
    limit_shown(wanted->reason, kMaxMessageBytes);
  } else if (auto* piece = std::get_if<wire::FilePiece>(&message)) {
    limit_shown(piece->lost, kMaxMessageBytes);
  } else if (auto* files = std::get_if<wire::FilesProgress>(&message)) {
    limit_shown(files->waits_for, kMaxMessageBytes);
  } else if (auto* dump = std::get_if<wire::StackDump>(&message)) {
    limit_shown(dump->how, kMaxWordBytes);
    limit_shown(dump->text, kMaxStackText);
  } else if (auto* hello = std::get_if<wire::Hello>(&message)) {
    limit(hello->build, kMaxWordBytes);
  }
}

std::string last_words(std::string_view stderr_tail) {
  while (!stderr_tail.empty() && (stderr_tail.back() == '\n' || stderr_tail.back() == ' '))
    stderr_tail.remove_suffix(1);
  const bool cut = stderr_tail.size() > kMaxLastWords;
  if (cut) stderr_tail.remove_prefix(stderr_tail.size() - kMaxLastWords);
  std::string line(stderr_tail);
  std::ranges::replace(line, '\n', '|');
  return (cut ? "..." : "") + printable(line);
}

std::string one_line(std::string text) {
  text.resize(std::min(text.size(), kMaxLastWords));
  std::ranges::replace(text, '\n', ' ');
  return text;
}

ProcessStatus status_of(const wire::RankExited& exited) {
  using Kind = ProcessStatus::Kind;
  return {exited.signaled ? Kind::signaled : Kind::exited, static_cast<int>(exited.code),
          exited.core_dumped != 0};
}

std::string_view oom_text(const wire::RankExited& exited) {
  if (exited.oom_killed == 0) return "";
  const bool itself = exited.signaled != 0 && exited.code == SIGKILL;
  return itself ? ", killed for lack of memory"
                : ", after a process of it was killed for lack of memory";
}

ErrorCode runner_error_code(const wire::RunnerError& error) {
  for (const ErrorCode code : {ErrorCode::unsupported, ErrorCode::spawn, ErrorCode::protocol})
    if (error.code == error_code_name(code)) return code;
  return ErrorCode::runner;
}

std::uint64_t time_in(const wire::Message& message) {
  if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) return beat->time_boot_ms;
  if (const auto* ready = std::get_if<wire::JobReady>(&message)) return ready->time_boot_ms;
  return 0;
}

}  // namespace sortie::launcher
