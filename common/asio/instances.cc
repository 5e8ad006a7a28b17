// The compiled part of Asio, once for the whole project: the definitions of what its headers only
// declare under BOOST_ASIO_SEPARATE_COMPILATION.
#include <boost/asio/impl/src.hpp>
