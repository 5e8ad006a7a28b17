#include "launcher/exec/fold_sink.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <algorithm>

#include "common/base/check.h"
#include "launcher/console/console.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kTailBytes = 16u << 10;
constexpr std::size_t kFoldBytes = 64u << 10;
constexpr std::size_t kMaxFoldedLine = 64u << 10;

}  // namespace

FoldSink::FoldSink(bool only_what_was_said) : only_what_was_said_(only_what_was_said) {}
FoldSink::~FoldSink() = default;

void FoldSink::HashFree::operator()(evp_md_ctx_st* hash) const {
  EVP_MD_CTX_free(hash);
}

void FoldSink::started(std::size_t index, const std::string&) {
  Running& running = running_[index];
  for (auto& hash : running.hashes) {
    hash.reset(EVP_MD_CTX_new());
    SORTIE_CHECK(hash && EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) == 1);
  }
}

void FoldSink::append(Text& text, std::string_view bytes) {
  text.tail += bytes;
  if (text.tail.size() <= kTailBytes || trouble_) return;
  const auto offset = spill_.append(text.tail);
  if (!offset) {
    trouble_ = with_context(offset.error(), "--fold");
    return;
  }
  if (!text.extents.empty() && text.extents.back().offset + text.extents.back().size == *offset)
    text.extents.back().size += text.tail.size();
  else
    text.extents.push_back({*offset, text.tail.size()});
  text.tail = std::string();
}

void FoldSink::output(std::size_t index, const std::string&, wire::Stream stream,
                      std::string_view bytes) {
  const auto found = running_.find(index);
  if (found == running_.end()) return;
  const std::size_t which = stream == wire::Stream::out ? 0 : 1;
  SORTIE_CHECK(EVP_DigestUpdate(found->second.hashes[which].get(), bytes.data(), bytes.size()) ==
               1);
  // If the file can not be written, the beginning of the output is kept and the error is reported.
  if (!trouble_) append(found->second.texts[which], bytes);
}

void FoldSink::finished(std::size_t index, const std::string& host, const Outcome& outcome) {
  const auto found = running_.find(index);
  if (found == running_.end()) return;  // never started: in the table of failures
  std::string key = fmt::format("{} {}\n", static_cast<int>(outcome.kind), outcome.reason);
  for (auto& hash : found->second.hashes) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    SORTIE_CHECK(EVP_DigestFinal_ex(hash.get(), digest, &size) == 1);
    key.append(reinterpret_cast<const char*>(digest), size);
  }
  Group& group = groups_[key];
  if (group.hosts.empty()) {
    group.reason = outcome.reason;
    group.first = index;
    group.texts = std::move(found->second.texts);
    for (Text& text : group.texts) text.tail.shrink_to_fit();
  }
  group.first = std::min(group.first, index);
  group.hosts.push_back(host);
  running_.erase(found);
}

void FoldSink::begin_report() {
  report_ = Report{};
  for (const auto& [key, group] : groups_) {
    const bool silent = group.reason.empty() && group.texts[0].empty() && group.texts[1].empty();
    if (!silent || !only_what_was_said_) report_->groups.push_back(&group);
  }
  std::ranges::sort(report_->groups, {}, &Group::first);
}

/// Returns the next bytes of a text at the report's position; empty at its end.
std::string FoldSink::next_bytes(const Text& text) {
  Report& at = *report_;
  std::string bytes;
  if (at.extent < text.extents.size()) {
    const Text::Extent& extent = text.extents[at.extent];
    bytes.resize(std::min<std::uint64_t>(extent.size - at.offset, kFoldBytes));
    if (auto read = spill_.read(extent.offset + at.offset, bytes); !read) {
      if (!trouble_) trouble_ = with_context(std::move(read).error(), "--fold");
      bytes.clear();
      at.extent = text.extents.size();
      at.offset = 0;
      return bytes;
    }
    at.offset += bytes.size();
    if (at.offset == extent.size) {
      ++at.extent;
      at.offset = 0;
    }
  } else if (at.extent == text.extents.size()) {
    bytes = text.tail;
    ++at.extent;
  }
  return bytes;
}

std::optional<std::string> FoldSink::next_piece() {
  if (!report_) begin_report();
  Report& at = *report_;
  if (at.group == at.groups.size()) return std::nullopt;
  const Group& group = *at.groups[at.group];
  std::string piece;
  if (!at.headed) {
    at.headed = true;
    piece = fmt::format("==> {}{}{}\n", folded_with_count(group.hosts),
                        group.reason.empty() ? "" : ": ", printable(group.reason));
  }
  while (piece.size() < kFoldBytes) {
    const Text& text = group.texts[at.text];
    const bool had_more = at.extent <= text.extents.size();
    const std::string bytes = next_bytes(text);
    at.line += bytes;
    std::size_t begin = 0;
    for (;;) {
      const std::size_t end = at.line.find('\n', begin);
      if (end == at.line.npos) break;
      piece += shown_line(std::string_view(at.line).substr(begin, end - begin)) + "\n";
      begin = end + 1;
    }
    at.line.erase(0, begin);
    const bool at_end = at.extent > text.extents.size() || !had_more;
    if (!at.line.empty() && (at_end || at.line.size() >= kMaxFoldedLine)) {
      piece += shown_line(at.line) + "\n";
      at.line.clear();
    }
    if (!at_end) continue;
    at.extent = 0;
    at.offset = 0;
    if (++at.text < group.texts.size()) continue;
    at.text = 0;
    at.headed = false;
    ++at.group;
    break;
  }
  return piece;
}

}  // namespace sortie::launcher
