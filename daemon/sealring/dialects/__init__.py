"""The APIs that clients speak: each request, reply and stream, as values. No sockets, no trio."""
