"""PP2xx: functions are traced or compiled again."""
