"""Where a downloaded model lies, so that who downloads it and who serves it agree."""


def s3_folder(uri: str) -> str:
    """Of `s3://BUCKET/PATH`, below the folder that downloads go to."""
    return "s3/" + uri.removeprefix("s3://").rstrip("/")
