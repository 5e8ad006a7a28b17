#include "launcher/exec/sinks.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "launcher/ssh/base64.h"

namespace sortie::launcher {
namespace {

using OrderedJson = nlohmann::ordered_json;
using wire::Stream;

constexpr std::size_t kMaxJsonPartial = 64u << 10;

/// Returns nullopt for text that is not UTF-8, which is then encoded differently.
std::optional<std::string> dumped(const OrderedJson& json) {
  try {
    return json.dump();
  } catch (const OrderedJson::type_error&) {
    return std::nullopt;
  }
}

}  // namespace

void LiveSink::output(std::size_t index, const std::string& host, Stream stream,
                      std::string_view bytes) {
  console_.output(static_cast<std::uint32_t>(index), host, stream, bytes);
}

void LiveSink::finished(std::size_t index, const std::string&, const Outcome&) {
  console_.end_of_rank(static_cast<std::uint32_t>(index));
}

JsonSink::JsonSink(Console& console, std::size_t hosts, const std::vector<std::string>& argv)
    : console_(console) {
  OrderedJson json = {{"event", "start"}, {"schema", "sortie/exec/1"}, {"hosts", hosts}};
  json["argv"] = argv;
  console_.plain(json_text(json) + "\n");
}

void JsonSink::started(std::size_t, const std::string& host) {
  console_.plain(json_text(OrderedJson{{"event", "started"}, {"host", host}}) + "\n");
}

void JsonSink::line(const std::string& host, Stream stream, std::string_view text, bool whole) {
  OrderedJson json = {
      {"event", "output"}, {"host", host}, {"stream", stream == Stream::out ? "stdout" : "stderr"}};
  OrderedJson with_text = json;
  with_text["line"] = text;
  if (!whole) with_text["whole"] = json["whole"] = false;
  std::optional<std::string> out = dumped(with_text);
  if (!out) {
    json["base64"] = base64_encode(text);
    out = json_text(json);
  }
  console_.plain(*out + "\n");
}

void JsonSink::output(std::size_t index, const std::string& host, Stream stream,
                      std::string_view bytes) {
  std::string& partial = partials_[{index, stream}];
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    partial.append(bytes.substr(0, end));
    if (end != bytes.npos || partial.size() >= kMaxJsonPartial) {
      line(host, stream, partial, end != bytes.npos);
      partial.clear();
    }
    bytes.remove_prefix(end == bytes.npos ? bytes.size() : end + 1);
  }
}

void JsonSink::finished(std::size_t index, const std::string& host, const Outcome& outcome) {
  for (const Stream stream : {Stream::out, Stream::err}) {
    const auto partial = partials_.find({index, stream});
    if (partial == partials_.end()) continue;
    if (!partial->second.empty()) line(host, stream, partial->second, false);
    partials_.erase(partial);
  }
  OrderedJson json = {{"event", "exit"}, {"host", host}, {"outcome", outcome_name(outcome.kind)}};
  json["exit_code"] = outcome.exit_code;
  if (outcome.status.kind == ProcessStatus::Kind::signaled) json["signal"] = outcome.status.code;
  json["seconds"] = outcome.seconds;
  if (!outcome.reason.empty()) json["reason"] = outcome.reason;
  console_.plain(json_text(json) + "\n");
}

void JsonSink::end(std::span<const HostOutcome> hosts, int exit_code) {
  std::map<std::string, std::size_t> counts;
  for (const HostOutcome& host : hosts) ++counts[std::string(outcome_name(host.outcome.kind))];
  OrderedJson json = {{"event", "end"}, {"exit_code", exit_code}};
  json["outcomes"] = counts;
  console_.plain(json_text(json) + "\n");
}

Result<std::unique_ptr<FolderSink>> FolderSink::open(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return fail(ErrorCode::io,
                fmt::format("--output-dir {}: {}", folder.string(), error.message()));
  std::unique_ptr<FolderSink> sink(new FolderSink);
  sink->folder_ = folder;
  return sink;
}

Fd* FolderSink::file(std::size_t index, const std::string& host, Stream stream) {
  const auto [entry, is_new] = files_.try_emplace({index, stream});
  if (!is_new) return &entry->second;
  const std::filesystem::path path = folder_ / (host + (stream == Stream::out ? ".out" : ".err"));
  entry->second.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!entry->second && !trouble_) trouble_ = os_error(errno, path.string());
  return &entry->second;
}

void FolderSink::started(std::size_t index, const std::string& host) {
  file(index, host, Stream::out);
  std::error_code missing;
  std::filesystem::remove(folder_ / (host + ".err"), missing);  // left by an earlier command
}

void FolderSink::output(std::size_t index, const std::string& host, Stream stream,
                        std::string_view bytes) {
  Fd& out = *file(index, host, stream);
  while (out && !bytes.empty()) {
    const ssize_t count = ::write(out.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      if (!trouble_)
        trouble_ =
            os_error(errno, (folder_ / host).string() + (stream == Stream::out ? ".out" : ".err"));
      out.reset();
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void FolderSink::finished(std::size_t index, const std::string&, const Outcome&) {
  files_.erase({index, Stream::out});
  files_.erase({index, Stream::err});
}

}  // namespace sortie::launcher
