// Adoption: how the connection of another launcher, or a new connection of the same one, gets to
// the runner that holds a job. The launcher starts a fresh runner; that one finds the holder's Unix
// socket in the run folder, passes its two descriptors on, and stays until the holder is done,
// because sshd ties the channel to it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"

namespace sortie::runner {

/// The holder's side: "adopt.sock" in its run folder, 0600, for processes of this user alone.
class AdoptionListener {
 public:
  /// Takes the connection over, or says why not.
  using OnOffer = std::function<Result<>(const wire::Adopt& adopt, Fd in, Fd out)>;

  AdoptionListener(boost::asio::io_context& io, OnOffer on_offer)
      : io_(io), acceptor_(io), pause_(io), on_offer_(std::move(on_offer)) {}
  Result<> open(const std::string& folder);

 private:
  struct Client {
    explicit Client(boost::asio::io_context& io) : stream(io) {}
    boost::asio::posix::stream_descriptor stream;
    wire::FrameDecoder decoder;
    std::vector<Fd> descriptors;
  };
  void await_client();
  /// False: this process has no descriptor left for now.
  bool accept_all();
  void await_data(const std::shared_ptr<Client>& client);
  /// False: nothing more is expected from this client.
  bool receive(const std::shared_ptr<Client>& client);
  bool offer(const std::shared_ptr<Client>& client, const wire::Frame& frame);

  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor acceptor_;
  boost::asio::steady_timer pause_;
  OnOffer on_offer_;
  std::vector<std::shared_ptr<Client>> clients_;
  std::shared_ptr<Client>
      current_;  // whose connection is in use; its end tells it that we are done
};

/// The fresh runner's side: passes `in` and `out` on to the holder of the job. ErrorCode::lost:
/// there is none; io: that could not be found out; else it refuses. On success the stream stays
/// open until the holder is done.
boost::asio::awaitable<Result<Fd>> offer_connection(boost::asio::io_context& io, wire::Adopt adopt,
                                                    int in, int out);

}  // namespace sortie::runner
