// Keeper: the main object of the background process. It keeps connections with persistent runners,
// finds a runner for each request, and relays the bytes of its conversation.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launcher/host/bootstrap.h"
#include "launcher/warm/kept_runner.h"
#include "launcher/warm/request.h"
#include "launcher/warm/terminal_host.h"

namespace sortie::launcher::warm {

struct Talk;

class Keeper : public std::enable_shared_from_this<Keeper> {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  struct Parts {
    boost::asio::any_io_executor executor;
    const RunnerBinary& binary;
    std::string build;
    /// Creates the transport for the settings of one command.
    std::function<std::unique_ptr<Transport>(const Want&)> transport;
    /// How long the process stays after its last runner and its last client.
    std::chrono::milliseconds linger{2000};
  };

  explicit Keeper(Parts parts);

  /// Serves one client, from its request to its end.
  boost::asio::awaitable<void> serve(std::shared_ptr<Socket> socket);
  /// Must be called every second: sends pings, closes expired runners, returns free memory to the
  /// OS. Returns false if the process should exit.
  bool look();
  /// Closes all connections. Their runners see the end of the stream.
  void close_all();

 private:
  struct Session {
    std::shared_ptr<Transport> transport;
    int users = 0;
    Clock::time_point last_used = Clock::now();
  };
  /// An interactive session (`sortie ssh`) on a connection.
  struct Person {
    std::shared_ptr<Line> line;
    bool terminal = false;  // false: a command without a terminal
    Traffic traffic;
  };
  using Found = std::shared_ptr<KeptRunner>;

  boost::asio::awaitable<void> serve_want(std::shared_ptr<Client> client, Want want);
  boost::asio::awaitable<void> serve_terminal(std::shared_ptr<Client> client, Request request);
  boost::asio::awaitable<Result<Found>> find(std::shared_ptr<Talk> talk, const Want& want,
                                             Ready& ready);
  boost::asio::awaitable<Result<Found>> start_on(std::shared_ptr<Line> line, const Want& want,
                                                 std::chrono::milliseconds limit);
  boost::asio::awaitable<void> converse(std::shared_ptr<Talk> talk, Found runner);
  Found take_idle(const std::string& key);
  std::shared_ptr<Line> line_of(const std::string& key);
  void keep(const Found& runner);
  std::string list() const;
  std::string close_hosts(const std::vector<std::string>& hosts);

  Parts parts_;
  std::vector<Found> runners_;  // all runners; closed ones are erased by look()
  std::multimap<std::string, Found> idle_;
  std::list<Person> persons_;
  std::map<std::string, Session> sessions_;
  int clients_ = 0;
  bool retiring_ = false;
  bool untidy_ = false;                         // memory was used since the last malloc_trim
  Clock::time_point last_busy_ = Clock::now();  // last time with a client
  Clock::time_point last_kept_ = Clock::now();  // last time with a client or runner
};

}  // namespace sortie::launcher::warm
