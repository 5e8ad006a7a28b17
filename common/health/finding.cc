#include "common/health/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/health/words.h"

namespace sortie::health {
namespace {

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/// Removes and returns at most `most` hexadecimal digits, in lower case; empty if there are fewer
/// than `least`.
std::string hex_digits(std::string_view& text, std::size_t least, std::size_t most) {
  std::string digits;
  while (digits.size() < most && !text.empty() && is_hex(text.front())) {
    digits += static_cast<char>(text.front() >= 'A' && text.front() <= 'F' ? text.front() | 0x20
                                                                           : text.front());
    text.remove_prefix(1);
  }
  if (digits.size() < least) digits.clear();
  return digits;
}

void put_text(std::string& line, std::string_view key, std::string_view text, std::size_t bytes) {
  if (text.empty()) return;
  line += fmt::format(",\"{}\":\"", key);
  for (const char c : plain(text, bytes)) {
    if (c == '"' || c == '\\') line += '\\';
    line += c;
  }
  line += '"';
}

}  // namespace

std::string pci_address(std::string_view text) {
  std::string domain = hex_digits(text, 4, 8);
  if (domain.empty() || !take(text, ":")) return {};
  const std::string bus = hex_digits(text, 2, 2);
  if (bus.empty() || !take(text, ":")) return {};
  const std::string device = hex_digits(text, 2, 2);
  if (device.empty()) return {};
  std::string function = "0";
  if (take(text, ".")) function = hex_digits(text, 1, 1);
  if (function.empty() || !text.empty()) return {};
  // NVML writes eight digits, the kernel no more than needed.
  while (domain.size() > 4 && domain.front() == '0') domain.erase(0, 1);
  return domain + ':' + bus + ':' + device + '.' + function;
}

std::string plain(std::string_view text, std::size_t bytes) {
  std::string out(text.substr(0, bytes));
  std::ranges::replace_if(
      out, [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return out;
}

std::string to_line(const Finding& finding) {
  std::string line = fmt::format("{{\"type\":\"health\",\"kind\":\"{}\"", kind_name(finding.kind));
  if (finding.code != 0) line += fmt::format(",\"code\":{}", finding.code);
  put_text(line, "device", finding.device, kMaxDeviceBytes);
  if (finding.gpu) line += fmt::format(",\"gpu\":{}", *finding.gpu);
  put_text(line, "uuid", finding.uuid, kMaxUuidBytes);
  put_text(line, "source", finding.source, 16);
  put_text(line, "text", finding.text, kMaxTextBytes);
  if (finding.fatal) line += fmt::format(",\"fatal\":{}", *finding.fatal);
  if (finding.recovery) line += fmt::format(",\"recovery\":{}", *finding.recovery);
  if (finding.count != 1) line += fmt::format(",\"count\":{}", finding.count);
  if (finding.value != 0 && std::isfinite(finding.value))
    line += fmt::format(",\"value\":{:.6g}", finding.value);
  return line + '}';
}

}  // namespace sortie::health
