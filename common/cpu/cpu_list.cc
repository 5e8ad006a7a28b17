#include "common/cpu/cpu_list.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>

namespace sortie::cpu {
namespace {

std::unexpected<Error> bad(std::string_view text) {
  return fail(ErrorCode::io, fmt::format("'{}' is no list of CPUs like 0-3,8", text));
}

bool take_number(std::string_view& text, std::uint32_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number >= kMaxCpus) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

Result<CpuList> parse_cpu_list(std::string_view text) {
  while (text.ends_with('\n') || text.ends_with(' ')) text.remove_suffix(1);
  const std::string_view whole = text.substr(0, 100);
  CpuList cpus;
  while (!text.empty()) {
    std::uint32_t first = 0, last = 0;
    if (!take_number(text, first)) return bad(whole);
    last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      if (!take_number(text, last) || last < first) return bad(whole);
    }
    for (std::uint32_t cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1 || cpus.size() > kMaxCpus) return bad(whole);
    text.remove_prefix(1);
  }
  std::ranges::sort(cpus);
  cpus.erase(std::ranges::unique(cpus).begin(), cpus.end());
  return cpus;
}

std::string cpu_list_text(const CpuList& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]);
    i = last + 1;
  }
  return text;
}

CpuList allowed_cpus() {
  // A cpu_set_t has only 1024 CPUs, and the call fails with it on larger machines.
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  CpuList cpus;
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  if (set && ::sched_getaffinity(0, bytes, set) == 0) {
    const auto count = static_cast<std::size_t>(CPU_COUNT_S(bytes, set));
    for (std::uint32_t cpu = 0; cpus.size() < count; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
  }
  if (set) CPU_FREE(set);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

void confine_to(const CpuList& cpus) {
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  if (!set) return;
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(bytes, set);
  for (const std::uint32_t cpu : cpus) CPU_SET_S(cpu, bytes, set);
  ::sched_setaffinity(0, bytes, set);
  CPU_FREE(set);
}

}  // namespace sortie::cpu
