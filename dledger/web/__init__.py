"""What all HTTP ports share: limits of connections (aiohttp)."""
