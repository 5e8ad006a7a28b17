// What `sortie check` has measured between sites, one file for all jobs of this user:
// <state>/site_links.json, where <state> is $XDG_STATE_HOME/sortie or ~/.local/state/sortie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/hostlist.h"

namespace sortie::launcher {

/// The way from one site to another, as it was found.
struct SiteLink {
  std::string from, to;            // sites
  std::string from_host, to_host;  // that were measured
  bool works = false;              // bytes went that way, on a connection that either side opened
  bool reached = false;            // `from_host` could open a connection to `to_host`
  std::string error;               // why not
  double byte_s = 0.0;             // from -> to, of all streams together
  double round_trip = 0.0;         // seconds, the best of a few
  double loss = 0.0;               // share of segments that were sent again
  std::uint64_t mtu = 0;           // of packets that get through; 0 = not known
  bool mtu_vanishes = false;       // larger ones are lost without a word
  std::int64_t port = 0;           // that `to_host` listened on
  double time = 0.0;               // Unix seconds
  bool operator==(const SiteLink&) const = default;
};

nlohmann::ordered_json site_link_json(const SiteLink& link);
/// ErrorCode::data for what is no such object, or has numbers that no link has.
Result<SiteLink> parse_site_link(const nlohmann::json& object);

/// The newest of `known` for each pair of the sites of these hosts, both ways, among hosts that
/// these are. Pairs without one are left out.
std::vector<SiteLink> links_between(const std::vector<SiteLink>& known,
                                    const std::vector<config::HostSlots>& hosts);

/// What replaces what: links of the same two hosts and sites.
std::vector<SiteLink> with_links(std::vector<SiteLink> known, const std::vector<SiteLink>& fresh);

/// Nothing is known where there is no file.
Result<std::vector<SiteLink>> read_site_links(const std::filesystem::path& file);
/// The file is replaced whole; the newest 1024 links stay.
Result<> keep_site_links(const std::filesystem::path& file, const std::vector<SiteLink>& fresh);
/// That of this user. ErrorCode::config without a HOME.
Result<std::filesystem::path> site_links_file();

}  // namespace sortie::launcher
