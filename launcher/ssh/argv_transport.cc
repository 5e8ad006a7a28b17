#include "launcher/ssh/argv_transport.h"

#include <fmt/core.h>

#include <utility>

#include "launcher/local/open_files.h"
#include "launcher/ssh/program_transport.h"

namespace sortie::launcher {
namespace {

/// The messages of these programs have nothing in common, so the stage is always "connect".
ssh::SshFailure ended_early(const std::string& program, std::string_view said,
                            const ProcessStatus& status) {
  const std::string words = ssh::last_words(said);
  return {{ErrorCode::connect,
           fmt::format("runner.transport: {} ended ({}) before the host answered; it said: {}; run "
                       "it by hand with the command `true`",
                       program, status.to_string(), words.empty() ? "nothing" : words)},
          false};
}

}  // namespace

std::vector<std::string> template_words(const std::vector<std::string>& words,
                                        const std::string& host) {
  std::vector<std::string> out;
  for (std::string word : words) {
    for (std::size_t at = 0; (at = word.find(config::kHostWord, at)) != word.npos;
         at += host.size())
      word.replace(at, config::kHostWord.size(), host);
    out.push_back(std::move(word));
  }
  return out;
}

std::unique_ptr<Transport> make_argv_transport(boost::asio::any_io_executor executor,
                                               std::vector<std::string> words,
                                               const config::SshConfig& limits) {
  raise_open_file_limit();
  ssh::HostProgram way;
  way.key = "runner.transport";
  way.failure = [program = words.front()](std::string_view said, const ProcessStatus& status) {
    return ended_early(program, said, status);
  };
  way.words = [words = std::move(words)](const std::string& host) {
    std::vector<std::string> all = template_words(words, host);
    // No address: SSH_CONNECTION may be inherited from this machine (srun).
    all.insert(all.end(), {"/bin/sh", "-c", ssh::first_script("")});
    return all;
  };
  way.fanout = static_cast<std::size_t>(limits.fanout);
  way.time_to_sign_in = ssh::time_to_sign_in(limits);
  return ssh::make_program_transport(std::move(executor), std::move(way));
}

}  // namespace sortie::launcher
