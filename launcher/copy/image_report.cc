#include "launcher/copy/image_report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/quantity.h"

namespace sortie::launcher {

Progress image_progress(std::span<const ArchiveProgress> archives, std::size_t hosts,
                        std::size_t loading) {
  ArchiveProgress sum;
  for (const ArchiveProgress& one : archives) {
    sum.cut += one.cut;
    sum.to_cut += one.to_cut;
    sum.reading.hashed += one.reading.hashed;
    sum.reading.to_read += one.reading.to_read;
    sum.is_sent = sum.is_sent || one.is_sent;
    sum.done += one.done;
    sum.wanted += one.wanted;
  }
  if (loading > 0)
    return {fmt::format("loading on {}", counted(loading, "host")), sum.done, sum.wanted};
  if (!sum.is_sent && sum.reading.to_read > 0)
    return {"reading the image", sum.reading.hashed, sum.reading.to_read};
  if (!sum.is_sent && sum.to_cut > 0)
    return {"copying the layers that hosts lack", sum.cut, sum.to_cut};
  return {fmt::format("image to {}", counted(hosts, "host")), sum.done, sum.wanted};
}

std::string image_text(const PushReport& report) {
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
  if (good == 0) return "";
  std::string text =
      fmt::format("{} ({}) on {} of {} in {:.1f} s", report.image, report.image_id.substr(0, 19),
                  good, counted(report.outcomes.size(), "host"), report.seconds);
  if (present > 0) text += fmt::format(", {} had it", present);
  if (from_here > 0) text += fmt::format(", {} sent from here", byte_count(from_here));
  if (from_hosts > 0) text += fmt::format(", {} from host to host", byte_count(from_hosts));
  return text + "\n";
}

std::string image_json(const PushReport& report) {
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
  return json_text(out, 2) + "\n";
}

}  // namespace sortie::launcher
