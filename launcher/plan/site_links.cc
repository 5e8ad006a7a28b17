#include "launcher/plan/site_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/json_text.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kMaxLinks = 1024, kMaxLinksBytes = 4u << 20;
constexpr const char* kLinksSchema = "sortie/site-links/1";

bool same_way(const SiteLink& a, const SiteLink& b) {
  return a.from == b.from && a.to == b.to && a.from_host == b.from_host && a.to_host == b.to_host;
}

std::unexpected<Error> bad_link(const std::string& why) {
  return fail(ErrorCode::data, "no measured link: " + why);
}

}  // namespace

nlohmann::ordered_json site_link_json(const SiteLink& link) {
  return {{"from", link.from},
          {"to", link.to},
          {"from_host", link.from_host},
          {"to_host", link.to_host},
          {"works", link.works},
          {"reached", link.reached},
          {"error", link.error},
          {"mbit_s", link.byte_s * 8e-6},
          {"round_trip_ms", link.round_trip * 1e3},
          {"loss", link.loss},
          {"mtu", link.mtu},
          {"mtu_vanishes", link.mtu_vanishes},
          {"port", link.port},
          {"unix_seconds", link.time}};
}

Result<SiteLink> parse_site_link(const nlohmann::json& object) {
  if (!object.is_object()) return bad_link("no object");
  SiteLink link;
  for (const auto& [key, text] : {std::pair{"from", &link.from},
                                  {"to", &link.to},
                                  {"from_host", &link.from_host},
                                  {"to_host", &link.to_host},
                                  {"error", &link.error}}) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) return bad_link(fmt::format("{}", key));
    *text = found->get<std::string>();
  }
  for (const auto& [key, flag] : {std::pair{"works", &link.works},
                                  {"reached", &link.reached},
                                  {"mtu_vanishes", &link.mtu_vanishes}}) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_boolean()) return bad_link(fmt::format("{}", key));
    *flag = found->get<bool>();
  }
  double mtu = 0.0, port = 0.0;
  struct Number {
    const char* key;
    double* value;
    double most;
  };
  for (const Number& number : {Number{"mbit_s", &link.byte_s, 1e9},
                               {"round_trip_ms", &link.round_trip, 1e6},
                               {"loss", &link.loss, 1.0},
                               {"mtu", &mtu, 65536},
                               {"port", &port, 65535},
                               {"unix_seconds", &link.time, 1e12}}) {
    const auto found = object.find(number.key);
    if (found == object.end() || !found->is_number()) return bad_link(number.key);
    *number.value = found->get<double>();
    if (!std::isfinite(*number.value) || *number.value < 0.0 || *number.value > number.most)
      return bad_link(number.key);
  }
  if (!config::check_site_name(link.from).empty() || !config::check_site_name(link.to).empty())
    return bad_link("the name of a site");
  link.byte_s /= 8e-6;
  link.round_trip /= 1e3;
  link.mtu = static_cast<std::uint64_t>(mtu);
  link.port = static_cast<std::int64_t>(port);
  return link;
}

std::vector<SiteLink> links_between(const std::vector<SiteLink>& known,
                                    const std::vector<config::HostSlots>& hosts) {
  const auto is_in = [&](const std::string& host, const std::string& site) {
    return std::ranges::any_of(
        hosts, [&](const config::HostSlots& one) { return one.name == host && one.site == site; });
  };
  const std::vector<std::string> sites = config::sites_of(hosts);
  std::vector<SiteLink> out;
  for (const std::string& from : sites)
    for (const std::string& to : sites) {
      const SiteLink* newest = nullptr;
      for (const SiteLink& link : known)
        if (from != to && link.from == from && link.to == to && is_in(link.from_host, from) &&
            is_in(link.to_host, to) && (newest == nullptr || link.time > newest->time))
          newest = &link;
      if (newest != nullptr) out.push_back(*newest);
    }
  return out;
}

std::vector<SiteLink> with_links(std::vector<SiteLink> known, const std::vector<SiteLink>& fresh) {
  for (const SiteLink& link : fresh) {
    std::erase_if(known, [&](const SiteLink& old) { return same_way(old, link); });
    known.push_back(link);
  }
  std::ranges::stable_sort(known, {}, &SiteLink::time);
  if (known.size() > kMaxLinks)
    known.erase(known.begin(), known.end() - static_cast<std::ptrdiff_t>(kMaxLinks));
  return known;
}

Result<std::vector<SiteLink>> read_site_links(const std::filesystem::path& file) {
  const auto text = read_file(file, kMaxLinksBytes);
  if (!text && text.error().code == ErrorCode::not_found) return std::vector<SiteLink>();
  if (!text) return std::unexpected(text.error());
  const auto broken = [&](const std::string& why) {
    return fail(ErrorCode::data, fmt::format("{}: {}; remove the file and run `sortie check` again",
                                             file.string(), why));
  };
  const nlohmann::json all = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object() || all.value("schema", nlohmann::json()) != kLinksSchema ||
      !all.contains("links") || !all["links"].is_array())
    return broken("not what `sortie check` writes");
  std::vector<SiteLink> links;
  for (const nlohmann::json& object : all["links"]) {
    auto link = parse_site_link(object);
    if (!link) return broken(link.error().message);
    links.push_back(std::move(*link));
  }
  return links;
}

Result<> keep_site_links(const std::filesystem::path& file, const std::vector<SiteLink>& fresh) {
  auto known = read_site_links(file);
  if (!known && known.error().code != ErrorCode::data) return std::unexpected(known.error());
  nlohmann::ordered_json out = {{"schema", kLinksSchema},
                                {"links", nlohmann::ordered_json::array()}};
  // A malformed file is overwritten: links are measured again.
  for (const SiteLink& link : with_links(known.value_or(std::vector<SiteLink>()), fresh))
    out["links"].push_back(site_link_json(link));
  std::error_code ignored;
  std::filesystem::create_directories(file.parent_path(), ignored);
  return write_file_atomic(file, json_text(out, 1) + "\n");
}

Result<std::filesystem::path> site_links_file() {
  SORTIE_ASSIGN_OR_RETURN(const std::filesystem::path state, state_folder(""));
  return state / "site_links.json";
}

}  // namespace sortie::launcher
