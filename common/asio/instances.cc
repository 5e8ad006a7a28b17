// The compiled half of Asio, once for the whole project: what its headers declare only under
// BOOST_ASIO_SEPARATE_COMPILATION is defined here.
#include <boost/asio/impl/src.hpp>
