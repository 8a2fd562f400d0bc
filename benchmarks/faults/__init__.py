"""Faults: three replicas, a worker, a store with a copy and a load balancer, mistreated while clients learn."""
