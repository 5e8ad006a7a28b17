#include "launcher/copy/image_report.h"

#include <fmt/core.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "launcher/copy/progress.h"

namespace sortie::launcher {

void print_text(const PushReport& report) {
  std::size_t good = 0, present = 0;
  std::uint64_t from_here = 0, from_hosts = 0;
  for (std::size_t i = 0; i < report.outcomes.size(); ++i) {
    const HostResult& result = report.results[i];
    if (result.error) continue;
    ++good;
    present += report.outcomes[i].present;
    from_here += result.done.bytes_from_launcher;
    from_hosts += result.done.bytes_from_hosts;
  }
  if (good == 0) return;
  fmt::print("{} ({}) on {} of {} hosts in {:.1f} s", report.image, report.image_id.substr(0, 19),
             good, report.outcomes.size(), report.seconds);
  if (present > 0) fmt::print(", {} had it", present);
  if (from_here > 0) fmt::print(", {} sent from here", byte_count(from_here));
  if (from_hosts > 0) fmt::print(", {} from host to host", byte_count(from_hosts));
  fmt::print("\n");
}

void print_json(const PushReport& report) {
  nlohmann::ordered_json out = {{"schema", "sortie/image_push/1"},
                                {"image", report.image},
                                {"image_id", report.image_id},
                                {"seconds", report.seconds}};
  for (std::size_t i = 0; i < report.outcomes.size(); ++i) {
    const HostResult& result = report.results[i];
    nlohmann::ordered_json host = {{"host", result.host}, {"ok", !result.error}};
    if (result.error) {
      host["error"] = error_code_name(result.error->code);
      host["message"] = result.error->message;
    } else {
      host["present"] = report.outcomes[i].present;
      host["layers_there"] = report.outcomes[i].layers_there;
      host["bytes_from_launcher"] = result.done.bytes_from_launcher;
      host["bytes_from_hosts"] = result.done.bytes_from_hosts;
    }
    out["hosts"].push_back(std::move(host));
  }
  fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace sortie::launcher
