#include "trainer/cli/site_setup.h"

#include <filesystem>

#include "trainer/checkpoint/find.h"
#include "trainer/outer/socket_coordinator.h"
#include "trainer/outer/tcp_links.h"

namespace sortie::trainer {

config::JobConfig job_of_site(config::JobConfig job, const RankContext& rank) {
  if (rank.sites == 0) return job;
  job.topology = config::topology_of_site(job.topology, rank.sites);
  const auto put_name = [&](std::string& folder) {
    constexpr std::string_view kSite = "{site}";
    const auto at = folder.find(kSite);
    if (at != std::string::npos) folder.replace(at, kSite.size(), rank.site);
    return at != std::string::npos;
  };
  put_name(job.trainer.load_dir);
  put_name(job.trainer.load_weights_from);
  std::string& folder = job.trainer.save_dir;
  if (!put_name(folder) && !folder.empty())
    folder =
        (std::filesystem::path(folder) / (std::string(kSiteFolderPrefix) + rank.site)).string();
  return job;
}

std::optional<outer::Site> site_of_rank(const config::JobConfig& job, const RankContext& rank) {
  if (rank.sites == 0) return std::nullopt;
  outer::Site site;
  site.name = rank.site;
  site.index = rank.site_index;
  site.count = rank.sites;
  site.settings = config::resolve_outer(job, rank.sites);
  site.make_coordinator =
      [socket = rank.socket_path](std::int64_t) -> Result<std::unique_ptr<outer::Coordinator>> {
    return outer::SocketCoordinator::make(socket);
  };
  outer::TcpLinksSettings links;
  links.site = rank.site;
  links.streams = site.settings.streams;
  const std::int64_t port = job.outer.port;
  if (job.outer.route == "launcher") {
    links.forward = rank.forward_path;
    links.host = rank.host;
  }
  const bool forwarded = job.outer.route == "launcher";
  site.make_links = [links, port,
                     forwarded](std::int64_t part) -> Result<std::unique_ptr<outer::SiteLinks>> {
    if (forwarded && links.forward.empty())
      return fail(ErrorCode::config,
                  "outer.route = \"launcher\": SORTIE_FORWARD is not set; start the run by `sortie "
                  "run`, or set outer.route = \"direct\"");
    outer::TcpLinksSettings own = links;
    own.part = part;
    own.port = static_cast<std::uint16_t>(port == 0 ? 0 : port + part);
    return outer::TcpLinks::make(own);
  };
  return site;
}

}  // namespace sortie::trainer
