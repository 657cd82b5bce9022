"""The marks and dashes of the labels, for charts and for the page's controls."""

SHAPES = (  # SVG paths in a square from -1 to 1
    "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z",
    "M-.9,-.9H.9V.9H-.9Z",
    "M0,-1.1L1.1,.9H-1.1Z",
    "M0,-1.3L1.3,0L0,1.3L-1.3,0Z",
    "M-.4,-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z",
    "M0,1.1L1.1,-.9H-1.1Z",
    "M-1.1,-.6L-.6,-1.1L0,-.5L.6,-1.1L1.1,-.6L.5,0L1.1,.6L.6,1.1L0,.5L-.6,1.1L-1.1,.6L-.5,0Z",
    "M-1.1,0L.9,-1.1V1.1Z",
    "M-1,-1.1H1L-1,1.1H1Z",
    "M1.1,0L-.9,-1.1V1.1Z",
    "M-1.1,-1V1L1.1,-1V1Z",
    "M-1.3,-.35H1.3V.35H-1.3Z",
)
DASHES = ([1, 0], [7, 3], [2, 2], [10, 3, 2, 3], [4, 4])  # in pixels; with 12 colours no pair comes twice
