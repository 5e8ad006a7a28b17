#include <doctest/doctest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "common/asio/alarm.h"
#include "common/asio/task_group.h"
#include "common/asio/within.h"
#include "tests/support/patience.h"

namespace sortie {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using asio::awaitable;

awaitable<void> sleep(std::chrono::milliseconds time) {
  asio::steady_timer timer(co_await asio::this_coro::executor, time);
  co_await timer.async_wait(asio::use_awaitable);
}

awaitable<void> fail_after(std::chrono::milliseconds time, std::string why) {
  co_await sleep(time);
  throw std::runtime_error(why);
}

awaitable<void> count_after(std::chrono::milliseconds time, int& count) {
  co_await sleep(time);
  ++count;
}

/// Runs `work` to completion as main() would: rethrows an exception that leaves it.
void run(asio::io_context& io, awaitable<void> work) {
  spawn(io, std::move(work));
  io.run();
}

std::string what_leaves(asio::io_context& io) {
  try {
    io.run();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an exception that leaves a spawned coroutine leaves the I/O loop") {
  asio::io_context io(1);
  spawn(io, fail_after(1ms, "lost memory"));
  CHECK(what_leaves(io) == "lost memory");

  asio::io_context again(1);
  const std::string kept = "captured";
  spawn(again.get_executor(), [kept] { return fail_after(1ms, kept); });
  CHECK(what_leaves(again) == "captured");
}

TEST_CASE("a group is waited for until its last task, also those that tasks start") {
  asio::io_context io(1);
  int count = 0;
  struct Waiter {
    static awaitable<void> more(TaskGroup& group, int& counted) {
      co_await sleep(5ms);
      group.spawn(count_after(5ms, counted));
    }
    static awaitable<void> wait(asio::io_context& context, int& counted) {
      TaskGroup group(context.get_executor());
      co_await group.wait();  // no tasks: returns at once
      for (int i = 0; i < 3; ++i) group.spawn(count_after(std::chrono::milliseconds(i), counted));
      group.spawn(more(group, counted));
      CHECK(group.running() == 4);
      co_await group.wait();
      CHECK(group.running() == 0);
      CHECK(counted == 4);
      group.spawn(count_after(1ms, counted));  // a group can be used again
      co_await group.wait();
      CHECK(counted == 5);
    }
  };
  run(io, Waiter::wait(io, count));
  CHECK(count == 5);
}

TEST_CASE("what the first task throws comes out of the wait at once") {
  asio::io_context io(1);
  std::string caught;
  std::chrono::steady_clock::duration took{};
  struct Waiter {
    static awaitable<void> wait(asio::io_context& context, std::string& what,
                                std::chrono::steady_clock::duration& time) {
      const auto begun = std::chrono::steady_clock::now();
      TaskGroup group(context.get_executor());
      group.spawn(sleep(60s));
      group.spawn(fail_after(1ms, "first"));
      group.spawn(fail_after(50s, "second"));
      try {
        co_await group.wait();
      } catch (const std::exception& error) {
        what = error.what();
      }
      time = std::chrono::steady_clock::now() - begun;
      context.stop();
    }
  };
  run(io, Waiter::wait(io, caught, took));
  CHECK(caught == "first");
  CHECK(took < test::patient(10s));
}

TEST_CASE("a group that is no longer waited for swallows nothing") {
  asio::io_context io(1);
  bool returned = false;
  struct Waiter {
    static awaitable<void> stop(TaskGroup& group) {
      co_await sleep(2ms);
      group.stop_waiting();
    }
    static awaitable<void> wait(asio::io_context& context, bool& back) {
      TaskGroup group(context.get_executor());
      group.spawn(fail_after(500ms, "left alone"));
      spawn(context, stop(group));
      co_await group.wait();
      back = true;
      co_await sleep(60s);
    }
  };
  spawn(io, Waiter::wait(io, returned));
  CHECK(what_leaves(io) == "left alone");
  CHECK(returned);
}

TEST_CASE("within: a value in time, nothing from what hangs, and no exception is lost") {
  asio::io_context io(1);
  struct Work {
    static awaitable<std::string> answer(std::chrono::milliseconds time) {
      if (time.count() > 0) co_await sleep(time);
      co_return "answer";
    }
    static awaitable<std::string> broken() {
      co_await sleep(1ms);
      throw std::runtime_error("broken");
    }
    static awaitable<void> all(asio::io_context& context) {
      const auto at_once = co_await within(60s, answer(0ms));
      CHECK(at_once == "answer");
      const auto in_time = co_await within(60s, answer(2ms));
      CHECK(in_time == "answer");
      const auto begun = std::chrono::steady_clock::now();
      const auto late = co_await within(10ms, answer(60s));
      CHECK_FALSE(late.has_value());
      CHECK(std::chrono::steady_clock::now() - begun < test::patient(10s));
      context.stop();
    }
    static awaitable<void> throws() { co_await within(60s, broken()); }
  };
  run(io, Work::all(io));
  asio::io_context other(1);
  spawn(other, Work::throws());
  CHECK(what_leaves(other) == "broken");
}

TEST_CASE("an alarm calls its function once, at its time") {
  asio::io_context io;
  Alarm alarm(io.get_executor());
  int rung = 0;
  alarm.set(1h, [&] { rung += 100; });
  alarm.set(1ms, [&] { ++rung; });  // in place of the first
  io.run();
  CHECK(rung == 1);
}

TEST_CASE("an alarm that has expired is not heard once it is cancelled, set again or destroyed") {
  asio::io_context io;
  const asio::any_io_executor executor = io.get_executor();
  Alarm first(executor), cancelled(executor), again(executor);
  auto destroyed = std::make_unique<Alarm>(executor);
  int rung = 0, late = 0;
  first.set(1ms, [&] {
    ++rung;
    cancelled.cancel();
    again.set(2ms, [&] { ++rung; });
    destroyed.reset();
  });
  cancelled.set(2ms, [&] { ++late; });
  again.set(2ms, [&] { ++late; });
  destroyed->set(2ms, [&] { ++late; });
  std::this_thread::sleep_for(10ms);  // all have expired before the first handler is called
  io.run();
  CHECK(rung == 2);
  CHECK(late == 0);
}

TEST_CASE("a function of an alarm may destroy the alarm") {
  asio::io_context io;
  auto alarm = std::make_unique<Alarm>(io.get_executor());
  const std::string text = "longer than a string that is stored in place";
  std::string heard;
  alarm->set(1ms, [&, text] {
    alarm.reset();
    heard = text;
  });
  io.run();
  CHECK(heard == text);
}

}  // namespace sortie
