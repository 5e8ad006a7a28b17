// Fuzzes the parsers of /dev/kmsg. A finding is one line of printable ASCII with a well-formed
// device name, and a record written by a process is never a finding.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/health/judge.h"
#include "common/health/kernel_line.h"

namespace {

using namespace sortie::health;

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c <= 0x7e; });
}

void check_finding(const Finding& finding) {
  SORTIE_CHECK(finding.source == "kmsg");
  SORTIE_CHECK(finding.text.size() <= kMaxTextBytes && is_plain(finding.text), "{}", finding.text);
  SORTIE_CHECK(finding.device.size() <= kMaxDeviceBytes && is_plain(finding.device), "{}",
               finding.device);
  if (finding.kind == Kind::xid || finding.kind == Kind::sxid || finding.kind == Kind::gpu_lost)
    SORTIE_CHECK(pci_address(finding.device) == finding.device, "{}", finding.device);
  const std::string line = to_line(finding);
  SORTIE_CHECK(line.size() < 4096 && is_plain(line), "{}", line);
  const Judgement judgement = judge(finding);
  SORTIE_CHECK(!judgement.what.empty());
  const std::string command = remedy_command(judgement.remedy, "h01", finding);
  SORTIE_CHECK(command.find_first_of(";&|$`'\"\\<>()\n*?") == command.npos, "{}", command);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto finding = kernel_finding(text)) check_finding(*finding);
  const auto finding = record_finding(text);
  if (!finding) return 0;
  check_finding(*finding);
  const auto record = parse_kernel_record(text);
  SORTIE_CHECK(record.has_value() && record->facility == 0);
  SORTIE_CHECK(kernel_finding(record->text).has_value());
  return 0;
}
