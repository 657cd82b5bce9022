"""Several hosts on one machine: network namespaces with limited links, for a server and its clients."""
