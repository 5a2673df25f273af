"""Who a node is, who belongs to the cluster, and the sealed channels between them."""
